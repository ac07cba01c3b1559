package kernel

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// openUncompressed returns the module in a file and its size. The compression follows from
// the name. An uncompressed module is not read into memory.
func openUncompressed(f *os.File, name string) (io.ReaderAt, int64, error) {
	var r io.Reader
	var err error
	switch path.Ext(name) {
	case ".ko":
		info, err := f.Stat()
		if err != nil {
			return nil, 0, err
		}
		return f, info.Size(), nil
	case ".gz":
		r, err = gzip.NewReader(f)
	case ".xz":
		r, err = xz.NewReader(f)
	case ".zst":
		var z *zstd.Decoder
		z, err = zstd.NewReader(f, zstd.WithDecoderMaxMemory(maxModule), zstd.WithDecoderConcurrency(1))
		if err == nil {
			defer z.Close()
			r = z
		}
	default:
		return nil, 0, fmt.Errorf("%w: its name ends with neither .ko, .ko.xz, .ko.zst nor .ko.gz", ErrNoModule)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", ErrNoModule, err)
	}
	data, err := readAtMost(r, maxModule)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: uncompress it: %w", ErrNoModule, err)
	}
	return bytes.NewReader(data), int64(len(data)), nil
}
