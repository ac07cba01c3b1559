package main

import (
	"fmt"
	"strings"
)

// drawRow returns the elements of a row. The drawing must look the same with every font, so each word is at
// the place of its first cell and as wide as its cells, and lines and arrows are drawn.
func drawRow(l line) string {
	var b strings.Builder
	for begin := 0; begin < len(l); {
		end := begin + 1
		for end < len(l) && l[end].style == l[begin].style && kind(l[end].char) == kind(l[begin].char) {
			end++
		}
		if run := l[begin:end]; kind(run[0].char) != blank {
			b.WriteString(drawRun(run, begin))
		}
		begin = end
	}
	return b.String()
}

// The kinds of characters.
const (
	blank = iota
	letter
	sign  // such as ●, which a font may have from another one of another width
	shape // drawn, not written
	full  // a shape that is filled
)

// kind returns the kind of a character.
func kind(char rune) int {
	switch {
	case char == ' ':
		return blank
	case char == '▶':
		return full
	case shapes[char] != "":
		return shape
	case char >= '\u2000':
		return sign
	}
	return letter
}

// drawRun returns the element of a run that begins at a column.
func drawRun(run line, column int) string {
	switch kind(run[0].char) {
	case shape:
		return fmt.Sprintf(`<path%s d="%s"/>`, class(run[0].style), path(run, column))
	case full:
		return fmt.Sprintf(`<path%s d="%s"/>`, class(run[0].style, "full"), path(run, column))
	}
	return fmt.Sprintf(`<text%s x="%d" y="%d" textLength="%d" lengthAdjust="spacingAndGlyphs">%s</text>`,
		class(run[0].style), column*cellWidth, baseline, len(run)*cellWidth, escape(run.String()))
}

// shapes has the paths of characters that join those of the next cells, from the upper left corner of a
// cell of 9 by 19 pixels.
var shapes = map[rune]string{
	'─': "m0 9.5h9",
	'│': "m4.5 0v19",
	'╭': "m9 9.5q-4.5 0-4.5 4.5v5",
	'╮': "m0 9.5q4.5 0 4.5 4.5v5",
	'╰': "m4.5 0v5q0 4.5 4.5 4.5",
	'╯': "m4.5 0v5q0 4.5-4.5 4.5",
	'╌': "m1 9.5h2.5m2 0h2.5",
	'╎': "m4.5 2.5v5m0 4.5v5",
	'▶': "m0 5 9 4.5-9 4.5z",
	'▷': "m.6 5.5 8 4-8 4z",
}

// path returns the path of shapes.
func path(run line, column int) string {
	var b strings.Builder
	for i, c := range run {
		fmt.Fprintf(&b, "M%d 0%s", (column+i)*cellWidth, shapes[c.char])
	}
	return b.String()
}

// class returns the attribute for a style and other classes.
func class(s style, classes ...string) string {
	if s.bold {
		classes = append(classes, "bold")
	}
	if s.dim {
		classes = append(classes, "dim")
	}
	if s.color != 0 {
		classes = append(classes, fmt.Sprint("c", s.color))
	}
	if len(classes) == 0 {
		return ""
	}
	return ` class="` + strings.Join(classes, " ") + `"`
}

// escape returns a text for XML.
func escape(text string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text)
}
