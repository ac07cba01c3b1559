package build

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
	"github.com/gpuready/gpuready/driver/build/link"
)

// command is a link command that Kbuild ran, read from the file beside the target in which
// Kbuild records it.
type command struct {
	program string
	flags   []string // without -r, -o and -T
	script  string   // value of -T; "": none
	objects []string
	objtool []string // the program and its arguments, without the object; nil: objtool was not run
}

const maxCommand = 1 << 20

// readCommand returns the command by which a target in the tree was linked.
func (t *tree) readCommand(target string) (command, error) {
	path := filepath.Join(t.dir, "."+target+".cmd")
	info, err := os.Stat(path)
	if err != nil {
		return command{}, err
	}
	if info.Size() > maxCommand {
		return command{}, fmt.Errorf("%s has more than %d bytes", path, maxCommand)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return command{}, err
	}
	c, err := parseCommand(string(text))
	if err != nil {
		return command{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

var errCommand = errors.New("it has no command that links")

// parseCommand parses the first line of such a file: "cmd_<target> := <commands>", since
// Linux 6.4 "savedcmd_<target> := ...". Semicolons separate the commands; the first is the
// linker's.
func parseCommand(text string) (command, error) {
	line, _, _ := strings.Cut(text, "\n")
	head, commands, ok := strings.Cut(line, " := ")
	if !ok || !strings.HasPrefix(strings.TrimPrefix(head, "saved"), "cmd_") || strings.ContainsAny(commands, "'\"$`\\") {
		return command{}, errCommand
	}
	link, after, _ := strings.Cut(commands, ";")
	words := strings.Fields(link)
	if len(words) == 0 {
		return command{}, errCommand
	}
	c := command{program: words[0]}
	target := ""
	for i := 1; i < len(words); i++ {
		w := words[i]
		switch {
		case w == "-r":
		case (w == "-o" || w == "-T") && i+1 < len(words):
			i++
			if w == "-T" {
				c.script = words[i]
			} else {
				target = words[i]
			}
		case target == "" || strings.HasPrefix(w, "-"):
			c.flags = append(c.flags, w)
		default:
			c.objects = append(c.objects, w)
		}
	}
	if target == "" || len(c.objects) == 0 {
		return command{}, errCommand
	}
	if words := strings.Fields(after); len(words) > 1 && filepath.Base(words[0]) == objtoolName && words[len(words)-1] == target {
		c.objtool = words[:len(words)-1]
	}
	return c, nil
}

// resolvePath returns the path of a file that Kbuild names relative to its working folder.
func (t *tree) resolvePath(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	for _, dir := range []string{t.Headers.Output, t.Headers.Source} {
		if at := filepath.Join(dir, path); fileExists(at) {
			return at
		}
	}
	return filepath.Join(t.dir, path)
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// objtoolName is a program of the kernel that adds unwinding tables and lists of places to
// patch. If the kernel tracks indirect branches, it is run on whole modules.
const objtoolName = "objtool"

// copyObjtool copies the program if it was run on an object, and returns its arguments.
func (t *tree) copyObjtool(object, to string) ([]string, error) {
	c, err := t.readCommand(object)
	if err != nil || c.objtool == nil {
		return nil, err
	}
	// Debian's objtool runs another program beside it.
	files, err := filepath.Glob(t.resolvePath(c.objtool[0]) + "*")
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(filepath.Join(to, link.ObjtoolDir), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	for _, f := range files {
		at := filepath.Join(to, link.ObjtoolDir, filepath.Base(f))
		info, err := os.Stat(f)
		if err != nil {
			return nil, err
		}
		_, of, chosen := strings.Cut(filepath.Base(f), ".real-")
		if !info.Mode().IsRegular() || fileExists(at) || chosen && of != link.KernelArch() {
			continue
		}
		if err := folder.CopyFile(f, at); err != nil {
			return nil, err
		}
	}
	return c.objtool[1:], nil
}
