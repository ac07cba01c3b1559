// Changelog makes CHANGELOG.md, and the notes of a release, of the entries in changelog/: one small
// file for each change, written for users.
//
//	go run . generate            write CHANGELOG.md
//	go run . check v0.2.0        check the entries, that the version which this tree builds has a
//	                             section, and CHANGELOG.md
//	go run . notes v0.2.0        print the notes of a release
//	go run . cut v0.3.0          make a section of the unreleased entries, dated today
//
// Exit code 1 means that an entry or CHANGELOG.md is wrong, 2 that the command line is.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// root is the repository's folder, seen from this one.
const root = "../.."

var errUsage = errors.New("usage: go run . generate | check VERSION | notes VERSION | cut VERSION")

func main() {
	err := run(os.Args[1:])
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "changelog:", err)
	if errors.Is(err, errUsage) {
		os.Exit(2)
	}
	os.Exit(1)
}

func run(args []string) error {
	dir, changelog := filepath.Join(root, "changelog"), filepath.Join(root, "CHANGELOG.md")
	switch {
	case len(args) == 2 && args[0] == "cut":
		return cut(dir, args[1], time.Now().UTC())
	case len(args) == 2 && args[0] == "notes":
		all, err := readAll(dir)
		if err != nil {
			return err
		}
		text, err := notes(all, args[1])
		fmt.Print(text)
		return err
	case len(args) == 2 && args[0] == "check":
		all, err := readAll(dir)
		if err != nil {
			return err
		}
		return check(all, args[1], changelog)
	case len(args) == 1 && args[0] == "generate":
		all, err := readAll(dir)
		if err != nil {
			return err
		}
		return os.WriteFile(changelog, render(all), 0o644)
	}
	return errUsage
}

// check compares CHANGELOG.md with the sections. It also requires one of the version that this tree
// builds.
func check(all []section, version, path string) error {
	if err := requireSection(all, version); err != nil {
		return err
	}
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, render(all)) {
		return errors.New("CHANGELOG.md differs from the entries in changelog/; run make changelog, and commit it")
	}
	return nil
}
