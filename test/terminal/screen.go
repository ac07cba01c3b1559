package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// style holds the look of a cell. Its colour is that of SGR, 30 to 37 and 90 to 97, or 0: the terminal's.
type style struct {
	bold, dim bool
	color     int
}

type cell struct {
	char rune
	style
}

type line []cell

func (l line) String() string {
	var b strings.Builder
	for _, c := range l {
		b.WriteRune(c.char)
	}
	return b.String()
}

func equalRows(a, b []line) bool {
	return slices.EqualFunc(a, b, func(a, b line) bool { return slices.Equal(a, b) })
}

// screen is a terminal that folds long lines between words, which real ones do not. It knows the control
// sequences of programs that print lines, not those of programs that draw on the whole screen.
type screen struct {
	width, height int

	lines       []line // since the screen was last cleared
	row, column int    // of the cursor in these lines
	pen         style
	rest        string // the beginning of a control sequence that goes on in the next text
}

// control matches a control sequence, and unfinished the beginning of one.
var (
	control    = regexp.MustCompile(`^\x1b\[([0-9;?]*)([A-Za-z])`)
	unfinished = regexp.MustCompile(`^\x1b(\[[0-9;?]*)?$`)
)

// print prints a text. It fails at a control sequence that it does not know.
func (s *screen) print(text string) error {
	text, s.rest = s.rest+text, ""
	for text != "" {
		if text[0] == '\x1b' {
			found := control.FindStringSubmatch(text)
			if found == nil && unfinished.MatchString(text) {
				s.rest = text
				return nil
			}
			if found == nil || !s.execute(found[1], found[2]) {
				return fmt.Errorf("the control sequence in %q cannot be drawn", text[:min(len(text), 12)])
			}
			text = text[len(found[0]):]
			continue
		}
		char, size := utf8.DecodeRuneInString(text)
		text = text[size:]
		s.put(char)
	}
	return nil
}

// put prints a character, or moves the cursor.
func (s *screen) put(char rune) {
	switch char {
	case '\r':
		s.column = 0
	case '\n':
		s.row, s.column = s.row+1, 0
	case '\b':
		s.column = max(0, s.column-1)
	case '\t':
		s.column += 8 - s.column%8
	case '\a':
	default:
		s.reach()
		l := s.lines[s.row]
		for len(l) <= s.column {
			l = append(l, cell{char: ' '})
		}
		l[s.column] = cell{char, s.pen}
		s.lines[s.row] = l
		s.column++
		return
	}
	s.reach()
}

// reach adds the lines up to the cursor's.
func (s *screen) reach() {
	for len(s.lines) <= s.row {
		s.lines = append(s.lines, nil)
	}
}

// execute executes a control sequence. It reports false if it does not know it.
func (s *screen) execute(parameters, command string) bool {
	switch command + parameters {
	case "K", "K0": // erases the rest of the line
		s.reach()
		s.lines[s.row] = s.lines[s.row][:min(s.column, len(s.lines[s.row]))]
	case "K2":
		s.reach()
		s.lines[s.row] = nil
	case "J2", "H": // a program clears the screen by both
		s.lines, s.row, s.column = nil, 0, 0
	case "h?25", "l?25": // the cursor, which is not drawn
	default:
		return command == "m" && s.dip(parameters)
	}
	return true
}

// dip changes the style of what is printed next, by the parameters of SGR.
func (s *screen) dip(parameters string) bool {
	for code := range strings.SplitSeq(parameters, ";") {
		n, _ := strconv.Atoi(code) // "" is 0
		switch {
		case n == 0:
			s.pen = style{}
		case n == 1:
			s.pen.bold = true
		case n == 2:
			s.pen.dim = true
		case n == 22:
			s.pen.bold, s.pen.dim = false, false
		case n == 39:
			s.pen.color = 0
		case n >= 30 && n <= 37, n >= 90 && n <= 97:
			s.pen.color = n
		default:
			return false
		}
	}
	return true
}

// rows returns the last rows, as many as the screen has, without the blanks at their ends.
func (s *screen) rows() []line {
	var all []line
	for _, l := range s.lines {
		all = append(all, fold(l, s.width)...)
	}
	return all[max(0, len(all)-s.height):]
}

// indent is the indentation of the rows into which a line is continued.
const indent = 2

// fold breaks a line into rows, if possible between words or at least at a comma or a slash.
func fold(l line, width int) (rows []line) {
	l = slices.Clone(trim(l))
	for len(l) > width {
		end := breakpoint(l, width)
		rows = append(rows, trim(l[:end]))
		l = append(slices.Repeat(line{{char: ' '}}, indent), l[end:]...)
	}
	return append(rows, l)
}

// breakpoint returns where a line that is too long is broken: behind the last space in the right half, or
// else behind the last comma or slash there, or else at the width.
func breakpoint(l line, width int) int {
	if l[width].char == ' ' { // the last word ends at the edge
		return width + 1
	}
	for _, separator := range []rune{' ', ',', '/'} {
		for i := width; i > width/2; i-- {
			if l[i-1].char == separator {
				return i
			}
		}
	}
	return width
}

// trim returns a line without the blanks at its end.
func trim(l line) line {
	for len(l) > 0 && l[len(l)-1].char == ' ' {
		l = l[:len(l)-1]
	}
	return l
}
