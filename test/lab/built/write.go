package built

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes a program that may be run at once. It starts no process from this one
// meanwhile: until that runs its own program it would have the file open for writing, and Linux
// runs no file that is open for writing ("text file busy", golang.org/issue/22315).
func WriteProgram(path string, content []byte, mode os.FileMode) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, content, mode)
}

// Script writes a shell script.
func Script(t testing.TB, path, lines string) {
	t.Helper()
	if err := WriteProgram(path, []byte("#!/bin/sh\n"+lines+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Copy copies a file that `make build` creates to a path.
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
