// Package output writes tables and text for people, with the colours and width of their terminal.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// Colours.
const (
	Green  = "32"
	Yellow = "33"
	Red    = "31;1"
	Dim    = "2"
	Bold   = "1"
)

// Style configures the output.
type Style struct {
	Width int // columns
	Color bool
}

// StyleFor returns the Look for w: on a terminal its width, and colours unless $NO_COLOR is set.
func StyleFor(w io.Writer) Style {
	const usual = 100
	if f, is := w.(*os.File); is && term.IsTerminal(int(f.Fd())) {
		columns, _, err := term.GetSize(int(f.Fd()))
		if err != nil || columns <= 0 {
			columns = usual
		}
		return Style{columns, os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return Style{Width: columns}
	}
	return Style{Width: usual}
}

// Pen collects formatted text.
type Pen struct {
	Style
	strings.Builder
}

// Paint colours text.
func (l Style) Paint(color, text string) string {
	if !l.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Line writes a line, wrapped and indented.
func (p *Pen) Line(color string, indent int, text string) {
	for i, line := range wrap(text, max(p.Width-indent, narrowest)) {
		if i > 0 {
			p.WriteString("\n")
		}
		p.WriteString(strings.Repeat(" ", indent) + p.Paint(color, line))
	}
	p.WriteString("\n")
}

// narrowest is the minimum width of text, even on a narrower terminal.
const narrowest = 24

func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}

// Cell is a cell of a table.
type Cell struct {
	Text  string
	Color string
}

// Row is a row of a table, with a text below it in full width.
type Row struct {
	Cells []Cell
	Below string
	Color string // of Below
}

// Table writes rows under a head. If the terminal is too narrow for the columns, it writes each
// row as lines of "head: cell".
func (p *Pen) Table(head []string, rows []Row) {
	if len(rows) == 0 {
		return
	}
	widths := make([]int, len(head))
	for i, h := range head {
		widths[i] = utf8.RuneCountInString(h)
	}
	for _, r := range rows {
		for i, c := range r.Cells {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	total := 2 * (len(head) - 1)
	for _, w := range widths {
		total += w
	}
	if total > p.Width {
		p.stack(head, rows)
		return
	}
	cells := make([]Cell, len(head))
	for i, h := range head {
		cells[i] = Cell{h, Dim}
	}
	p.row(cells, widths)
	for _, r := range rows {
		p.row(r.Cells, widths)
		if r.Below != "" {
			p.Line(r.Color, 2, r.Below)
		}
	}
}

func (p *Pen) row(cells []Cell, widths []int) {
	var line strings.Builder
	for i, c := range cells {
		line.WriteString(p.Paint(c.Color, c.Text))
		line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.Text)+2))
	}
	p.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

func (p *Pen) stack(head []string, rows []Row) {
	for _, r := range rows {
		for i, c := range r.Cells {
			indent := 2
			if i == 0 {
				indent = 0
			}
			if c.Text != "" {
				p.Line(c.Color, indent, strings.ToLower(head[i])+": "+c.Text)
			}
		}
		if r.Below != "" {
			p.Line(r.Color, 2, r.Below)
		}
	}
}

// Ago formats a duration as briefly as kubectl does.
func Ago(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// Since formats the time since t, or returns "" if t is zero.
func Since(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return Ago(now.Sub(t))
}

// JSON writes v as JSON.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
