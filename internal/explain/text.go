package explain

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// Style configures the drawing.
type Style struct {
	Width int  // columns; text is wrapped there
	Color bool // ANSI colours
}

// Words, signs and colours of the states.
var (
	words  = map[State]string{OK: "ok", Waiting: "waiting", Broken: "BROKEN", Absent: "none"}
	signs  = map[State]string{OK: "●", Waiting: "○", Broken: "✗", Absent: "·"}
	colors = map[State]string{OK: "32", Waiting: yellow, Broken: "31;1", Absent: dim}
)

// Colours (parameters of ANSI's SGR sequence).
const (
	bold   = "1"
	dim    = "2"
	yellow = "33"
	cyan   = "36"
)

// narrowest is the least width of the text, even on a narrower terminal.
const narrowest = 24

// pen collects the text that is drawn.
type pen struct {
	Style
	strings.Builder
	now time.Time
}

// Text draws the stages, and below them the facts about each stage.
func (r Report) Text(w io.Writer, look Style) error {
	p := &pen{Style: look, now: r.Time}
	title := r.Node
	if r.GPUs != "" {
		title += " · " + r.GPUs
	}
	origin := "as its components and proofs report"
	if r.Source == "cluster" {
		origin = "as the cluster knows it"
	}
	p.wrap(bold, title)
	p.wrap(dim, origin+", "+r.Time.Format(time.RFC3339))
	p.WriteString("\n")
	if p.picture(r.Stages) {
		p.WriteString("\n")
	}
	for i, s := range r.Stages {
		p.stage(s, i == len(r.Stages)-1)
	}
	for _, s := range r.Beside {
		p.stage(s, true)
	}
	for _, n := range r.Notes {
		p.note("! ", yellow, n)
	}
	if len(r.Events) > 0 {
		p.WriteString("\n")
		p.wrap(bold, "Recent events")
	}
	for _, e := range r.Events {
		p.event(e)
	}
	p.WriteString("\n")
	p.wrap(colors[r.state()], r.Result)
	_, err := io.WriteString(w, p.String())
	return err
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// state returns the state of the node as a whole.
func (r Report) state() State {
	if end := r.End(); end != nil {
		return end.State
	}
	return OK
}

// picture draws the stages as boxes side by side. It reports false, and draws nothing, if
// they do not fit.
func (p *pen) picture(all []Stage) bool {
	var top, middle, bottom strings.Builder
	width := 0
	for i, s := range all {
		inner := max(utf8.RuneCountInString(s.Name), len(words[Waiting])) + 2 // the longest of words
		paint := func(text string) string { return p.paint(colors[s.State], text) }
		if i > 0 {
			arrow, color := "─▶", colors[OK]
			if all[i-1].State != OK { // a dotted arrow leads on from there
				arrow, color = "╌▷", colors[Absent]
			}
			top.WriteString("  ")
			middle.WriteString(p.paint(color, arrow))
			bottom.WriteString("  ")
			width += 2
		}
		top.WriteString(paint("╭" + strings.Repeat("─", inner) + "╮"))
		middle.WriteString(paint("│" + center(s.Name, inner, " ") + "│"))
		bottom.WriteString(paint("╰" + center(" "+words[s.State]+" ", inner, "─") + "╯"))
		width += inner + 2
	}
	if width > p.Width {
		return false
	}
	fmt.Fprintf(p, "%s\n%s\n%s\n", top.String(), middle.String(), bottom.String())
	return true
}

func center(text string, width int, fill string) string {
	rest := width - utf8.RuneCountInString(text)
	return strings.Repeat(fill, rest/2) + text + strings.Repeat(fill, rest-rest/2)
}

func (p *pen) stage(s Stage, last bool) {
	head := fmt.Sprintf("%s %-8s %s", signs[s.State], s.Name, words[s.State])
	if !s.Since.IsZero() {
		head += " for " + ago(p.now.Sub(s.Since))
	}
	if s.Reason != "" {
		head += "  " + s.Reason
	}
	p.wrap(colors[s.State], head)
	rail := "│ "
	switch {
	case last:
		rail = "  "
	case s.State != OK:
		rail = "╎ "
	}
	if s.Message != "" {
		p.writeIndented(rail, "", "", s.Message)
	}
	for _, n := range s.Notes {
		p.writeIndented(rail, "! ", yellow, n)
	}
	if s.Action != "" {
		p.writeIndented(rail, "→ ", cyan, s.Action)
	}
}

func (p *pen) event(e Event) {
	color := colors[Absent]
	if e.Type == "Warning" {
		color = yellow
	}
	text := fmt.Sprintf("%s ago  %s: %s", ago(p.now.Sub(e.Time)), e.Reason, e.Message)
	if e.Count > 1 {
		text += fmt.Sprintf(" (%d times)", e.Count)
	}
	p.note("· ", color, text)
}

func (p *pen) note(mark, color, text string) { p.writeIndented("", mark, color, text) }

// writeIndented writes text after a rail (the line that joins the stages) and a mark, wrapped and indented.
func (p *pen) writeIndented(rail, mark, color, text string) {
	for i, part := range split(text, max(p.Width-utf8.RuneCountInString(rail+mark), narrowest)) {
		m := p.paint(color, mark)
		if i > 0 {
			m = strings.Repeat(" ", utf8.RuneCountInString(mark))
		}
		p.WriteString(rail + m + part + "\n")
	}
}

func (p *pen) wrap(color, text string) {
	for _, part := range split(text, max(p.Width, narrowest)) {
		p.WriteString(p.paint(color, part) + "\n")
	}
}

func (p *pen) paint(color, text string) string {
	if !p.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// split breaks text between words into parts no wider than width, except for longer
// words.
func split(text string, width int) []string {
	var parts []string
	line, wide := "", 0
	for word := range strings.SplitSeq(text, " ") {
		n := utf8.RuneCountInString(word)
		if line != "" && wide+1+n > width {
			parts = append(parts, strings.TrimRight(line, " "))
			line, wide = "", 0
		}
		if line != "" {
			line, wide = line+" ", wide+1
		}
		line, wide = line+word, wide+n
	}
	return append(parts, line)
}

// ago formats a duration in one unit, the largest of which there are at least two: "90 s", "3 min".
func ago(d time.Duration) string {
	switch {
	case d < time.Second:
		return "a moment"
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}
