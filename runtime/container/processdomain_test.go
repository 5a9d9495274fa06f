package container

import (
	"bytes"
	"testing"
)

func TestParseBits(t *testing.T) {
	for _, tc := range []struct {
		list string
		want []byte // nil is an error
	}{
		{"0", []byte{1, 0, 0, 0, 0, 0, 0, 0}},
		{"1-3, 8", []byte{0x0e, 1, 0, 0, 0, 0, 0, 0}},
		{"63,64", []byte{0, 0, 0, 0, 0, 0, 0, 0x80, 1, 0, 0, 0, 0, 0, 0, 0}},
		{"", []byte{}},
		{"3-1", nil},
		{"-1", nil},
		{"1-", nil},
		{"0-999", nil},
		{"x", nil},
		{"99999999999999999999", nil},
	} {
		got, err := parseBits(tc.list, 128)
		if (err != nil) != (tc.want == nil) || !bytes.Equal(got, tc.want) {
			t.Errorf("parseBits(%q) = %x, %v, want %x", tc.list, got, err, tc.want)
		}
	}
}
