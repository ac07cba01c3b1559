package sample

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"
)

// progress shows on w how far a run is: on a terminal one line that is rewritten, elsewhere at most a
// line for each tenth of the work.
type progress struct {
	name     string
	w        io.Writer
	terminal bool
	tenth    int // of the last line; -1: there is none yet
}

func newProgress(name string, w io.Writer) *progress {
	f, isFile := w.(*os.File)
	return &progress{name: name, w: w, terminal: isFile && term.IsTerminal(int(f.Fd())), tenth: -1}
}

// show shows the share of the work that is done, from 0 to 1, and what is being done, if not "".
func (p *progress) show(done float64, what string) {
	if what != "" {
		what = ", " + what
	}
	tenth := int(10 * done)
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\r\x1b[K%s: %.0f %%%s", p.name, 100*done, what)
	case tenth > p.tenth:
		fmt.Fprintf(p.w, "%s: %.0f %%%s\n", p.name, 100*done, what)
	}
	p.tenth = tenth
}

// end clears the line on a terminal. The next run starts anew.
func (p *progress) end() {
	if p.terminal && p.tenth >= 0 {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
	p.tenth = -1
}
