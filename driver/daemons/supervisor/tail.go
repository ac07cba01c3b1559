package supervisor

import (
	"bytes"
	"io"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

const (
	maxLines = 20
	maxLine  = 400
)

// tail keeps the last lines that were written to it.
type tail struct {
	handle func(line string) // called with each line

	mu    sync.Mutex
	lines []string
	part  []byte // of an incomplete line
}

func (t *tail) write(data []byte) {
	for piece := range bytes.Lines(data) {
		t.mu.Lock()
		room := maxLine + 1 - len(t.part) // one more byte marks a truncated line
		t.part = append(t.part, piece[:min(len(piece), max(room, 0))]...)
		t.mu.Unlock()
		if bytes.HasSuffix(piece, []byte("\n")) {
			t.flushLine()
		}
	}
}

// flushLine adds an incomplete line as a line.
func (t *tail) flushLine() {
	t.mu.Lock()
	text := string(t.part)
	t.part = t.part[:0]
	t.mu.Unlock()
	t.addLine(text)
}

// addLine adds a line.
func (t *tail) addLine(line string) {
	text := record.Clean(line, maxLine)
	if text == "" {
		return
	}
	t.mu.Lock()
	t.lines = append(t.lines, text)
	t.lines = slices.Delete(t.lines, 0, max(len(t.lines)-maxLines, 0))
	t.mu.Unlock()
	t.handle(text)
}

func (t *tail) lastLines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.lines)
}

// readAppended writes the part of a file that was appended since it had a size, or the last part of
// that.
func (t *tail) readAppended(path string, size int64) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	if info.Size() < size {
		size = 0 // the file was truncated
	}
	const limit = maxLines * maxLine
	data, _ := io.ReadAll(io.NewSectionReader(f, max(size, info.Size()-limit), limit))
	t.write(data)
	t.flushLine()
}

func sizeOf(path string) int64 {
	info, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}
