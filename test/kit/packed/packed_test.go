package packed_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/test/kit/packed"
)

func TestDecodeUndoesEncode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		some := rapid.SampledFrom([]byte{0, 1, 5, 0xe8, 0x48, 0x8d, 0xff, 7, 0x7f, 'E', 'L', 'F'})
		file := rapid.SliceOfN(some, 0, 300).Draw(t, "file")
		before := bytes.Clone(file)
		packed.Encode(file)
		packed.Decode(file)
		require.Equal(t, before, file)
	})
}

func TestTwoCallsOfAFunctionBecomeTheSame(t *testing.T) {
	file := make([]byte, 100)
	copy(file[10:], []byte{0xe8, 60, 0, 0, 0})
	copy(file[20:], []byte{0xe8, 50, 0, 0, 0})
	packed.Encode(file)
	require.Equal(t, file[10:15], file[20:25])
}
