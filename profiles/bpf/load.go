package bpf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/profiles"
)

// compileTimeout bounds a run of the compiler; the largest filters take 50 ms.
const compileTimeout = 10 * time.Second

// Load is LoadAll for one filter.
func Load(ctx context.Context, f profiles.SeccompFilter, cacheDir, helperPath string) ([]unix.SockFilter, error) {
	programs, err := LoadAll(ctx, []profiles.SeccompFilter{f}, cacheDir, helperPath)
	if err != nil {
		return nil, err
	}
	return programs[0], nil
}

// LoadAll returns the programs of filters, in their order, each in the order of its instructions. cacheDir is made if it
// is missing; "" does without a cache. helperPath is agentsafe-seccomp, which runs for each miss, side by side and with an
// empty environment.
//
// It returns [ErrUntrusted] if somebody else could have written the cache. That a compiled program can't be stored (a
// full disk, a read-only file system) is no error: the next call compiles again.
func LoadAll(ctx context.Context, filters []profiles.SeccompFilter, cacheDir, helperPath string) ([][]unix.SockFilter, error) {
	var c *cache
	if cacheDir != "" && len(filters) > 0 {
		var err error
		if c, err = openCache(cacheDir); err != nil {
			return nil, fmt.Errorf("open filter cache %q: %w", cacheDir, err)
		}
		defer c.close()
	}
	programs, errs := make([][]unix.SockFilter, len(filters)), make([]error, len(filters))
	var misses sync.WaitGroup
	for i := range filters {
		f := &filters[i]
		key := ""
		if c != nil {
			key = f.Key()
			if programs[i], errs[i] = c.load(key, cacheDir); programs[i] != nil || errs[i] != nil {
				continue
			}
		}
		misses.Go(func() {
			if programs[i], errs[i] = compile(ctx, f, helperPath); errs[i] == nil && c != nil {
				c.write(key, encode(programs[i]))
			}
		})
	}
	misses.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return programs, nil
}

// load returns a cached program, nil if there is no usable one.
func (c *cache) load(key, dir string) ([]unix.SockFilter, error) {
	data, err := c.read(key)
	if errors.Is(err, ErrUntrusted) {
		return nil, fmt.Errorf("read filter cache %q: %w", dir, err)
	}
	if err != nil {
		return nil, nil //nolint:nilerr // what is not there, or can't be read, is compiled anew
	}
	program, err := decode(data)
	if err != nil {
		return nil, nil //nolint:nilerr // a damaged file is compiled anew
	}
	return program, nil
}

// compile runs the helper.
func compile(ctx context.Context, f *profiles.SeccompFilter, helperPath string) ([]unix.SockFilter, error) {
	in, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("encode filter %q: %w", f.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, compileTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, helperPath)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{}, bytes.NewReader(in), &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("compile filter %q: run %s: %w: %s", f.Name, helperPath, err, strings.TrimSpace(errs.String()))
	}
	program, err := decode(out.Bytes())
	if err != nil {
		return nil, fmt.Errorf("compile filter %q: %w", f.Name, err)
	}
	return program, nil
}

const instructionBytes = 8

// decode checks that a program is whole: what the kernel can't load is found here, where the file is known.
func decode(data []byte) ([]unix.SockFilter, error) {
	n := len(data) / instructionBytes
	if n == 0 || len(data)%instructionBytes != 0 || n > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("a program of %d bytes", len(data))
	}
	out := make([]unix.SockFilter, n)
	for i := range out {
		b := data[i*instructionBytes:]
		out[i] = unix.SockFilter{
			Code: uint16(b[0]) | uint16(b[1])<<8, Jt: b[2], Jf: b[3],
			K: uint32(b[4]) | uint32(b[5])<<8 | uint32(b[6])<<16 | uint32(b[7])<<24,
		}
	}
	if out[n-1].Code != unix.BPF_RET|unix.BPF_K {
		return nil, errors.New("a program that does not end with an answer")
	}
	return out, nil
}

func encode(program []unix.SockFilter) []byte {
	out := make([]byte, 0, len(program)*instructionBytes)
	for _, i := range program {
		out = append(out, byte(i.Code), byte(i.Code>>8), i.Jt, i.Jf, byte(i.K), byte(i.K>>8), byte(i.K>>16), byte(i.K>>24))
	}
	return out
}
