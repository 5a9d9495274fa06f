package launch

import (
	"encoding/binary"
	"errors"
	"strings"

	"github.com/agentsafe/agentsafe/shim/bundle"
)

// params are the fields of containerd's BootstrapParams that start needs.
// Source: containerd/api, runtime/bootstrap/v1/bootstrap.proto.
type params struct {
	id, namespace, socketDir string
	logLevel                 int32
	// settings says that there is an extension with the settings of a handler, of a type that the shim's program reads.
	settings bool
}

// debugLevel is LOG_LEVEL_DEBUG; more verbose ones are below it.
const debugLevel = -4

// knownSettings are the messages that hold a handler's settings; see shim/options.
func knownSettings() []string {
	return []string{"containerd.runc.v1.Options", "runtimeoptions.v1.Options"}
}

// params returns the bootstrap parameters of containerd 2.3 and newer; nil if an older one asks, which gives options or
// nothing. Options can look like parameters, so that the names must match the command line's.
func (c *command) params(input []byte) *params {
	p := &params{}
	if len(input) == 0 || p.decode(input) != nil || p.id != c.ID || p.namespace != c.Namespace {
		return nil
	}
	return p
}

func (p *params) decode(input []byte) error {
	return eachField(input, func(number, value uint64, data []byte) error {
		switch number {
		case 1:
			p.id = string(data)
		case 2:
			p.namespace = string(data)
		case 3:
			p.logLevel = int32(value) //nolint:gosec // how an enumeration is encoded
		case 8:
			return eachField(data, func(number, _ uint64, data []byte) error {
				if number != 1 {
					return nil
				}
				return eachField(data, func(number, _ uint64, data []byte) error {
					if number == 1 {
						kind := string(data)
						for _, known := range knownSettings() {
							p.settings = p.settings || kind[strings.LastIndexByte(kind, '/')+1:] == known
						}
					}
					return nil
				})
			})
		case 9:
			p.socketDir = string(data)
		}
		return nil
	})
}

var errMessage = errors.New("no message of protocol buffers")

// eachField calls f for each field of a message, with its number and, by its kind, the value or the bytes.
func eachField(b []byte, f func(number, value uint64, data []byte) error) error {
	const varint, fixed64, bytes, fixed32 = 0, 1, 2, 5
	next := func() (uint64, bool) {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			return 0, false
		}
		b = b[n:]
		return v, true
	}
	for len(b) > 0 {
		tag, ok := next()
		if !ok || tag>>3 == 0 {
			return errMessage
		}
		var value, length uint64
		switch tag & 7 {
		case varint:
			value, ok = next()
		case bytes:
			length, ok = next()
		case fixed64:
			length = 8
		case fixed32:
			length = 4
		default:
			return errMessage
		}
		if !ok || length > uint64(len(b)) {
			return errMessage
		}
		if err := f(tag>>3, value, b[:length]); err != nil {
			return err
		}
		b = b[length:]
	}
	return nil
}

func appendField(b []byte, number int, data []byte) []byte {
	const bytes = 2
	b = binary.AppendUvarint(b, uint64(number)<<3|bytes) //nolint:gosec // a literal
	b = binary.AppendUvarint(b, uint64(len(data)))
	return append(b, data...)
}

// appendNumber leaves 0 out, as the format has it.
func appendNumber(b []byte, number int, v uint64) []byte {
	if v == 0 {
		return b
	}
	return binary.AppendUvarint(binary.AppendUvarint(b, uint64(number)<<3), v) //nolint:gosec // a literal
}

// answerStart writes the address in the form that the caller takes: a bare one, or a BootstrapResult.
func answerStart(p *params, path string) []byte {
	address := []byte("unix://" + path)
	if p == nil {
		return address
	}
	// An empty list says that containerd does all mounts that need more than mount(2), and saves it from asking.
	none := appendField(nil, 1, []byte("containerd.types.MountCapabilities"))
	out := appendNumber(nil, 1, 3) // version
	out = appendField(out, 2, address)
	out = appendField(out, 3, []byte("ttrpc"))
	return appendField(out, 6, appendField(nil, 1, none))
}

// encodeExit writes a DeleteResponse. Source: containerd/api, runtime/task/v2/shim.proto.
func encodeExit(e *bundle.Exit) []byte {
	at := appendNumber(nil, 1, uint64(e.At.Unix()))      //nolint:gosec // a signed number as the format has it
	at = appendNumber(at, 2, uint64(e.At.Nanosecond()))  //nolint:gosec // below 1e9
	out := appendNumber(nil, 1, uint64(uint32(e.PID)))   //nolint:gosec // they fit
	out = appendNumber(out, 2, uint64(uint32(e.Status))) //nolint:gosec // they fit
	return appendField(out, 3, at)
}
