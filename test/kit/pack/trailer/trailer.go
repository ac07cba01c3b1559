// Package trailer describes the end of a kit's file: the size of what is packed into it, and a mark.
package trailer

// The last bytes of the file are the size of the compressed archive before them, a little-endian uint64, and Magic.
const (
	Magic = "gpu-kit\n"
	Size  = 8 + len(Magic)
)

// Window is the distance in bytes over which the archive repeats itself at most.
const Window = 384 << 20
