package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// recordVariable names the environment variable with the folder into which walkthroughs are recorded.
const recordVariable = "GPUREADY_RECORD"

// The recorded terminal.
const (
	recordWidth  = 120
	recordHeight = 34
)

// longestWait is the longest time in a recording in which nothing happens. A longer wait is cut to it, and
// the next line says how long it was.
const longestWait = 2 * time.Second

// chunk is a text that a command printed at once. The last one is empty: the command has ended.
type chunk struct {
	after time.Duration // since the one before
	text  string
}

// recording writes an asciicast, version 2: https://docs.asciinema.org/manual/asciicast/v2/
type recording struct {
	to  io.WriteCloser
	now time.Duration
}

// newRecording writes the head of a recording.
func newRecording(to io.WriteCloser, title string) (*recording, error) {
	head, err := json.Marshal(map[string]any{"version": 2, "width": recordWidth, "height": recordHeight, "title": title, "env": map[string]string{"TERM": "xterm-256color", "SHELL": "/bin/sh"}})
	if err == nil {
		_, err = to.Write(append(head, '\n'))
	}
	return &recording{to: to}, err
}

// print writes what appears after a time.
func (r *recording) print(after time.Duration, text string) error {
	r.now += min(after, longestWait)
	event, err := json.Marshal([]any{r.now.Round(time.Millisecond).Seconds(), "o", text})
	if err == nil {
		_, err = r.to.Write(append(event, '\n'))
	}
	return err
}

// command writes a command with what the page says of it, and what it printed.
func (r *recording) command(about, line string, printed []chunk) error {
	if r == nil {
		return nil
	}
	var text strings.Builder
	for _, comment := range fold(about, recordWidth-2) {
		text.WriteString("\x1b[2m# " + comment + "\x1b[0m\r\n")
	}
	err := r.print(time.Second, text.String()+"\x1b[1;32m$\x1b[0m ")
	for word := range strings.SplitAfterSeq(line, " ") {
		err = errors.Join(err, r.print(120*time.Millisecond, word))
	}
	err = errors.Join(err, r.print(300*time.Millisecond, "\r\n"))
	lines, last := 0, "\n"
	for _, c := range printed {
		if c.after > longestWait && strings.HasSuffix(last, "\n") {
			err = errors.Join(err, r.print(c.after, fmt.Sprintf("\x1b[2m… %.0f s later\x1b[0m\r\n", c.after.Seconds())))
			c.after = 0
		}
		if c.text != "" {
			err = errors.Join(err, r.print(c.after, c.text))
			lines, last = lines+strings.Count(c.text, "\n"), c.text
		}
	}
	return errors.Join(err, r.print(min(time.Duration(lines)*200*time.Millisecond, longestWait), "\r\n"))
}

func (r *recording) close() error {
	if r == nil {
		return nil
	}
	return r.to.Close()
}

// fold breaks a text into lines.
func fold(text string, width int) (lines []string) {
	for word := range strings.FieldsSeq(text) {
		if last := len(lines) - 1; last >= 0 && len([]rune(lines[last]))+1+len([]rune(word)) <= width {
			lines[last] += " " + word
			continue
		}
		lines = append(lines, word)
	}
	return lines
}

// runOnTerminal runs a command on a terminal, and returns what it printed.
func runOnTerminal(cmd *exec.Cmd) ([]chunk, error) {
	line := cmd.Args[len(cmd.Args)-1] // of sh -c
	size := fmt.Sprintf("stty cols %d rows %d; ", recordWidth, recordHeight)
	script, err := exec.LookPath("script")
	if err != nil {
		return nil, err
	}
	cmd.Path, cmd.Args = script, []string{"script", "-qefc", size + line, "/dev/null"}
	cmd.Env = append(cmd.Env, "TERM=xterm-256color", "SHELL=/bin/sh")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	var printed []chunk
	last := time.Now()
	for r, buffer, kept := bufio.NewReader(out), make([]byte, 64<<10), 0; ; {
		n, err := r.Read(buffer[kept:])
		text := wholeRunes(buffer[:kept+n])
		if len(text) > 0 {
			printed = append(printed, chunk{time.Since(last), string(text)})
			last = time.Now()
		}
		kept = copy(buffer, buffer[len(text):kept+n])
		if err != nil {
			printed = append(printed, chunk{after: time.Since(last)})
			return printed, errors.Join(ignoreEOF(err), cmd.Wait())
		}
	}
}

// wholeRunes returns a text without the beginning of a character at its end. A terminal is read in blocks
// of 4 KiB, which may divide one.
func wholeRunes(text []byte) []byte {
	for i := len(text) - 1; i >= 0 && i > len(text)-utf8.UTFMax; i-- {
		if utf8.RuneStart(text[i]) {
			if !utf8.FullRune(text[i:]) {
				return text[:i]
			}
			break
		}
	}
	return text
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

var escape = regexp.MustCompile(`\x1b\[[0-9;]*[A-Za-z]|\r`)

// plainText returns what chunks contain, without colours.
func plainText(printed []chunk) string {
	var b bytes.Buffer
	for _, c := range printed {
		b.WriteString(c.text)
	}
	return escape.ReplaceAllString(b.String(), "")
}

// createRecording creates the recording of a section in the folder that the environment names. It returns
// nil, which records nothing, if that names none.
func createRecording(section string) (*recording, error) {
	dir := os.Getenv(recordVariable)
	if dir == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.Create(filepath.Join(dir, strings.ReplaceAll(strings.ToLower(section), " ", "-")+".cast"))
	if err != nil {
		return nil, err
	}
	return newRecording(file, section)
}
