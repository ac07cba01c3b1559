package kernel

import (
	"bytes"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Bounds on quotations from the kernel's log.
const (
	maxLines = 4
	maxLine  = 200
)

// kernelLog is the kernel's log from one moment on; nil if it cannot be read.
type kernelLog struct{ fd int }

// openLog opens the log at its end, so that only later messages are read.
func (s System) openLog() *kernelLog {
	if s.Kmsg == "" {
		return nil
	}
	fd, err := unix.Open(s.Kmsg, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	if _, err := unix.Seek(fd, 0, 2); err != nil {
		_ = unix.Close(fd)
		return nil
	}
	return &kernelLog{fd}
}

func (l *kernelLog) close() {
	if l != nil {
		_ = unix.Close(l.fd)
	}
}

// linesAbout returns the first lines that name a module. It prefers lines of NVIDIA's driver,
// which have the prefix NVRM.
func (l *kernelLog) linesAbout(module string) []string {
	if l == nil {
		return nil
	}
	var lines, driver []string
	buffer := make([]byte, 8192) // each read returns one record
	for range 10000 {
		n, err := unix.Read(l.fd, buffer)
		if err == unix.EPIPE || err == unix.EINTR { // lines were overwritten; continue with the next
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		text := parseRecord(buffer[:n])
		switch {
		case strings.Contains(text, "NVRM"):
			driver = append(driver, record.Clean(text, maxLine))
		case strings.Contains(strings.ReplaceAll(text, "-", "_"), module) && !strings.Contains(text, "taint"):
			lines = append(lines, record.Clean(text, maxLine))
		}
	}
	if len(driver) > 0 {
		lines = driver
	}
	return lines[:min(len(lines), maxLines)]
}

// parseRecord returns the text of a record: "<priority>,<sequence>,<time>,<flags>;<text>", then
// lines that begin with a space (Documentation/ABI/testing/dev-kmsg).
func parseRecord(data []byte) string {
	_, text, _ := bytes.Cut(data, []byte(";"))
	text, _, _ = bytes.Cut(text, []byte("\n"))
	// The kernel writes a newline within a record as \x0a.
	return strings.ReplaceAll(string(text), `\x0a`, " ")
}
