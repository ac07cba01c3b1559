package binaries

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// screen shows builds: on a terminal as a line that is updated, elsewhere as one line at the
// start and one at the end.
type screen struct {
	mu    sync.Mutex
	out   io.Writer
	width func() int // of the terminal; 0: not a terminal
	cores int
}

func newScreen(out io.Writer) *screen {
	width := func() int { return 0 }
	if f, ok := out.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		width = func() int {
			w, _, err := term.GetSize(int(f.Fd()))
			if err != nil || w <= 0 {
				return 80
			}
			return w
		}
	}
	return &screen{out: out, width: width, cores: runtime.NumCPU()}
}

func (s *screen) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.out, format, args...)
}

// announce prints what will be built, how long that takes, and where.
func (s *screen) announce(missing []entry, cache string) {
	var names []string
	var about time.Duration
	for _, e := range missing {
		names = append(names, e.name+" "+e.version)
		for _, b := range e.binaries {
			about += b.about
		}
	}
	s.printf("building %s: %s the first time, then they are kept in %s\n", strings.Join(names, ", "), s.estimate(about), cache)
}

// estimate scales a time measured with 2 cores to the number of cores.
func (s *screen) estimate(about time.Duration) string {
	about = about * 2 / time.Duration(max(s.cores, 1))
	switch minutes := int((about + 30*time.Second) / time.Minute); {
	case about < 45*time.Second:
		return "less than a minute"
	case minutes <= 1:
		return "about a minute"
	default:
		return fmt.Sprintf("about %d minutes", minutes)
	}
}

// building is a build in progress.
type building struct {
	s       *screen
	name    string
	about   string
	began   time.Time
	ended   chan struct{}
	stopped chan struct{}

	mu   sync.Mutex
	what string // it is doing now
}

func (s *screen) begin(name string, about time.Duration) *building {
	b := &building{s: s, name: name, about: s.estimate(about), began: time.Now(), ended: make(chan struct{}), stopped: make(chan struct{})}
	if s.width() == 0 {
		s.printf("%s: building, %s\n", name, b.about)
		close(b.stopped)
		return b
	}
	go b.live()
	return b
}

// live redraws the line until the build has ended.
func (b *building) live() {
	defer close(b.stopped)
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		b.mu.Lock()
		what := b.what
		b.mu.Unlock()
		b.s.printf("\r\033[K%s", line(b.name, b.about, what, time.Since(b.began), b.s.width()))
		select {
		case <-b.ended:
			return
		case <-tick.C:
		}
	}
}

func (b *building) setStep(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.what = what
}

// end prints the result; the error carries the reason.
func (b *building) end(err error, size int64) {
	close(b.ended)
	<-b.stopped
	took := time.Since(b.began).Round(time.Second)
	mark, how := "\033[32m✓\033[0m", fmt.Sprintf("built in %s, %.0f MB", took, float64(size)/1e6)
	if err != nil {
		mark, how = "\033[31m✗\033[0m", "not built, after "+took.String()
	}
	if b.s.width() == 0 {
		b.s.printf("%s: %s\n", b.name, how)
		return
	}
	b.s.printf("\r\033[K  %s %-32s %s\n", mark, b.name, how)
}

// line formats the updated line, cut to the width of the terminal: a longer one would wrap and
// remain.
func line(name, about, what string, elapsed time.Duration, width int) string {
	seconds := int(elapsed / time.Second)
	text := fmt.Sprintf("  ◌ %-32s %d:%02d, %s", name, seconds/60, seconds%60, about)
	if what != "" {
		text += "  " + what
	}
	if r := []rune(text); len(r) >= width {
		text = string(r[:max(0, width-1)])
	}
	return text
}
