package record

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Clean makes text from other programs fit for one line of a file, a log or a
// terminal: valid UTF-8, control characters replaced by spaces, cut to at most limit
// bytes.
func Clean(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > limit {
		const mark = "…"
		cut := limit - len(mark)
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:max(cut, 0)] + mark
	}
	return strings.TrimSpace(s)
}
