package built

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes a file that is run later by anyone. No process is started
// from this one meanwhile: it would have the file open for writing until it runs
// its own program, and Linux runs nothing that is open for writing ("text file
// busy", golang.org/issue/22315).
func WriteProgram(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, mode)
}

// Script makes a program of lines for a shell.
func Script(t testing.TB, path, lines string) {
	t.Helper()
	if err := WriteProgram(path, []byte("#!/bin/sh\n"+lines+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Copy makes a copy of something that `make build` makes, at a path.
func Copy(t testing.TB, path, name string) {
	t.Helper()
	program, err := os.ReadFile(Path(t, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteProgram(path, program, 0o755); err != nil {
		t.Fatal(err)
	}
}
