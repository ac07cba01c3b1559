// Package output parses the output of make, compilers and linkers: progress, the first error,
// and a hint for it.
package output

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// Bounds on a build's output.
const (
	maxLine   = 4096 // bytes; more of a line is left out
	maxReason = 400  // bytes of a Failure's message
	maxPath   = 200
)

// minFree is the free space of a disk, in bytes, below which it counts as full.
const minFree = 1 << 20

// progressEvery is the interval at which progress is logged.
const progressEvery = 5 * time.Second

// Failure is the first error in the output of a build.
type Failure struct {
	File    string // relative to the driver's sources where it is one of them; "": none is named
	Line    int    // 0: none is named
	Message string // the compiler's
	Hint    string // what helps; "": unknown
}

func (f *Failure) Error() string {
	s := f.Message
	switch {
	case f.File != "" && f.Line > 0:
		s = fmt.Sprintf("%s:%d: %s", f.File, f.Line, s)
	case f.File != "":
		s = f.File + ": " + s
	}
	if f.Hint != "" {
		s += "; " + f.Hint
	}
	return s
}

// Output parses the output of make and the compilers as it is written. It is not safe for
// concurrent use: make is one writer.
type Output struct {
	Driver  string // version of the driver that is built; "": unknown
	log     *slog.Logger
	dir     string // of the tree; it is removed from paths
	Objects int    // compiled
	Tests   int    // NVIDIA's, of the kernel
	Last    string // line
	Failure *Failure

	line    []byte // begun
	rank    rank   // of failure
	printed time.Time
	full    bool // the disk was, at one moment
}

// New returns an Output for a build below dir.
func New(dir string, log *slog.Logger) *Output {
	return &Output{log: log, dir: dir, printed: time.Now()}
}

// Write parses a part of the output.
func (o *Output) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		o.line = append(o.line, part[:min(len(part), maxLine-len(o.line))]...)
		if ended {
			o.parseLine(string(o.line))
			o.line = o.line[:0]
		}
		rest = after
	}
	return len(data), nil
}

// Finish parses a last line without newline. It attributes any failure to a full disk, if there
// was one: some of the kernel's programs then fail without a message, and a truncated file
// causes any error.
func (o *Output) Finish() {
	if len(o.line) > 0 {
		o.parseLine(string(o.line))
		o.line = nil
	}
	if o.checkDisk(); o.full && o.Failure != nil {
		o.Failure.Hint = hintDisk
	}
}

// checkDisk records whether the disk under the tree is full. The compiler removes its temporary
// files when it fails, and then the disk may have space again.
func (o *Output) checkDisk() {
	var s unix.Statfs_t
	if unix.Statfs(o.dir, &s) == nil && s.Blocks > 0 && s.Bavail*uint64(s.Bsize) < minFree {
		o.full = true
	}
}

// parseLine parses one line.
func (o *Output) parseLine(line string) {
	if strings.TrimSpace(line) == "" {
		return
	}
	o.Last = record.Clean(line, maxReason)
	switch fields := strings.Fields(line); fields[0] {
	case "CC", "AS", "LD":
		if fields[0] != "LD" {
			o.Objects++
		}
		o.checkDisk()
		o.logProgress()
		return
	case "CONFTEST:":
		o.Tests++
		o.logProgress()
		return
	}
	if f, rank := parseFailure(line); rank > o.rank {
		f.File = record.Clean(strings.TrimPrefix(filepath.Clean(f.File), o.dir+"/"), maxPath)
		if f.File == "." {
			f.File = ""
		}
		f.Message = record.Clean(strings.ReplaceAll(f.Message, o.dir+"/", ""), maxReason)
		f.Hint = findHint(o.Driver, f.Message)
		o.Failure, o.rank = f, rank
	}
}

// logProgress logs the progress of the build, at most every progressEvery.
func (o *Output) logProgress() {
	if time.Since(o.printed) < progressEvery {
		return
	}
	o.printed = time.Now()
	o.log.Info("compiling", "tests", o.Tests, "objects", o.Objects)
}

// rank orders failures by how much they explain: the highest is reported.
type rank int

const (
	noFailure rank = iota
	ofMake         // make's own message that something failed
	ofTool         // the linker, modpost, a shell, a test of the compiler
	ofSource       // at a line of a file
	ofMachine      // no space on the disk or in memory: a truncated file causes any error
)

// shapes are the forms of errors in a build's output. Their groups are a file, a line and a
// message; a message alone; or a file and a message.
var shapes = []struct {
	rank    rank
	pattern *regexp.Regexp
}{
	// gcc and clang: "nvidia/nv.c:12:5: error: implicit declaration of function 'f'".
	{ofSource, regexp.MustCompile(`^(?P<file>[^\s:][^:]*):(?P<line>\d+)(?::\d+)?: (?:fatal |internal compiler )?error: (?P<message>.+)$`)},
	// GNU as: "{standard input}:31: Error: no such instruction: `endbr65'".
	{ofSource, regexp.MustCompile(`^(?P<file>[^\s:][^:]*):(?P<line>\d+): (?:Fatal error|Error): (?P<message>.+)$`)},
	{ofTool, regexp.MustCompile(`^[^:]+: (?:Fatal error|Error): (?P<message>.+)$`)},
	// A program of the compiler's or the kernel's: "cc1: fatal error: x.h: No such file or
	// directory", "nvidia.o: error: objtool: f() falls through".
	{ofTool, regexp.MustCompile(`^(?P<file>[^\s:]+): (?:fatal error|error|internal compiler error): (?P<message>.+)$`)},
	// modpost: `ERROR: modpost: "f" [nvidia.ko] undefined!`, before Linux 5.7 without its name.
	// The kernel's Makefile: "  ERROR: Kernel configuration is invalid."
	{ofTool, regexp.MustCompile(`^\s*ERROR: (?:modpost: )?(?P<message>.+)$`)},
	// NVIDIA's conftest.sh: "*** Failed CC version check. Bailing out! ***".
	{ofTool, regexp.MustCompile(`^\*\*\* (?P<message>Failed .+)$`)},
	// The linker: "ld: cannot find nv-kernel.o: No such file or directory".
	{ofTool, regexp.MustCompile(`^\S*\bld(?:\.\w+)?: (?P<message>.+)$`)},
	// The dynamic linker, of a program in the headers: "modpost: /lib64/libc.so.6: version
	// `GLIBC_2.38' not found".
	{ofTool, regexp.MustCompile(`^(?P<file>[^\s:]+): (?P<message>.*(?:error while loading shared libraries|GLIBC_[\d.]+' not found).*)$`)},
	// A shell: "/bin/sh: 1: gcc-12: not found".
	{ofTool, regexp.MustCompile(`^\S*\b(?:ba|da)?sh: (?:line )?(?:\d+: )?(?P<message>.+)$`)},
	{ofMake, regexp.MustCompile(`^g?make(?:\[\d+\])?: \*\*\* (?P<message>.+)$`)},
}

// machineErrors lists parts of messages that show a fault of the machine, in any message.
var machineErrors = []string{
	"No space left on device", "Disk quota exceeded",
	"Cannot allocate memory", "virtual memory exhausted", "out of memory", "Killed signal terminated program", ": Killed (program",
}

// parseFailure returns the error in a line of a build's output.
func parseFailure(line string) (*Failure, rank) {
	line = strings.TrimRight(line, "\r")
	for _, part := range machineErrors {
		if strings.Contains(line, part) {
			return &Failure{Message: strings.TrimSpace(line)}, ofMachine
		}
	}
	if strings.Contains(line, "warning: ") {
		return nil, noFailure
	}
	for _, shape := range shapes {
		m := shape.pattern.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		f := &Failure{}
		for i, name := range shape.pattern.SubexpNames() {
			switch name {
			case "file":
				f.File = m[i]
			case "line":
				f.Line, _ = strconv.Atoi(m[i]) // digits only; 0 if too large
			case "message":
				f.Message = strings.TrimSpace(m[i])
			}
		}
		return f, shape.rank
	}
	return nil, noFailure
}
