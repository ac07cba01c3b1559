package main

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
	green  = "32"
	yellow = "33"
	red    = "31;1"
	dim    = "2"
	bold   = "1"
)

// style configures what people see: tables and text, with the colours and width of their terminal.
type style struct {
	Width int // columns
	Color bool
	Wide  bool // more columns
}

// newStyle returns the style for w: on a terminal its width, and colours unless $NO_COLOR is set.
func newStyle(w io.Writer) style {
	const usual = 100
	if isTerminal(w) {
		columns, _, err := term.GetSize(int(w.(*os.File).Fd()))
		if err != nil || columns <= 0 {
			columns = usual
		}
		return style{Width: columns, Color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	}
	if columns, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && columns > 0 {
		return style{Width: columns}
	}
	return style{Width: usual}
}

// pen collects formatted text.
type pen struct {
	style
	strings.Builder
}

// paint colours text.
func (l style) paint(color, text string) string {
	if !l.Color || color == "" || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// line writes a line, wrapped and indented.
func (p *pen) line(color string, indent int, text string) {
	for i, line := range wrap(text, max(p.Width-indent, narrowest)) {
		if i > 0 {
			p.WriteString("\n")
		}
		p.WriteString(strings.Repeat(" ", indent) + p.paint(color, line))
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

// cell is a cell of a table.
type cell struct {
	Text  string
	Color string
}

// row is a row of a table, with a text below it in full width.
type row struct {
	Cells []cell
	Below string
	Color string // of Below
}

// table writes rows under a head. If the terminal is too narrow for the columns, it writes each
// row as lines of "head: cell".
func (p *pen) table(head []string, rows []row) {
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
	cells := make([]cell, len(head))
	for i, h := range head {
		cells[i] = cell{h, dim}
	}
	p.tableRow(cells, widths)
	for _, r := range rows {
		p.tableRow(r.Cells, widths)
		if r.Below != "" {
			p.line(r.Color, 2, r.Below)
		}
	}
}

func (p *pen) tableRow(cells []cell, widths []int) {
	var line strings.Builder
	for i, c := range cells {
		line.WriteString(p.paint(c.Color, c.Text))
		line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c.Text)+2))
	}
	p.WriteString(strings.TrimRight(line.String(), " ") + "\n")
}

func (p *pen) stack(head []string, rows []row) {
	for _, r := range rows {
		for i, c := range r.Cells {
			indent := 2
			if i == 0 {
				indent = 0
			}
			if c.Text != "" {
				p.line(c.Color, indent, strings.ToLower(head[i])+": "+c.Text)
			}
		}
		if r.Below != "" {
			p.line(r.Color, 2, r.Below)
		}
	}
}

// formatAge formats a duration as briefly as kubectl does.
func formatAge(d time.Duration) string {
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

// formatSince formats the time since t, or returns "" if t is zero.
func formatSince(t, now time.Time) string {
	if t.IsZero() {
		return ""
	}
	return formatAge(now.Sub(t))
}

// writeJSON writes v as JSON.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
