package namespace

import (
	"io"
	"os"
	"strings"
)

// tail returns the last lines of a file, indented.
func tail(file string, lines int) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	const enough = 16 << 10
	if info, err := f.Stat(); err == nil && info.Size() > enough {
		_, _ = f.Seek(-enough, io.SeekEnd)
	}
	data, _ := io.ReadAll(f)
	return lastLines(string(data), lines)
}

// lastLines returns the last n lines of a text, indented.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if len(lines) == 1 && lines[0] == "" {
		return ""
	}
	lines = lines[max(0, len(lines)-n):]
	for i, line := range lines {
		const wide = 400
		if len(line) > wide {
			line = line[:wide] + "…"
		}
		lines[i] = "  " + line
	}
	return strings.Join(lines, "\n")
}
