package golden

import (
	"strings"

	"github.com/spf13/pflag"
)

// Table renders a table in Markdown. It escapes the bars in cells.
func Table(columns []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) {
		b.WriteByte('|')
		for _, cell := range cells {
			b.WriteString(" " + strings.ReplaceAll(cell, "|", `\|`))
			if cell != "" {
				b.WriteByte(' ')
			}
			b.WriteByte('|')
		}
		b.WriteByte('\n')
	}
	line(columns)
	b.WriteString(strings.Repeat("|---", len(columns)) + "|\n")
	for _, row := range rows {
		line(row)
	}
	return b.String()
}

// Variables renders the flags that have an environment variable, by the variables' names.
func Variables(flags *pflag.FlagSet, variables map[string]string) string {
	var rows [][]string
	flags.VisitAll(func(f *pflag.Flag) {
		if name := variables[f.Name]; name != "" {
			_, usage := pflag.UnquoteUsage(f)
			rows = append(rows, []string{Code(name), Code("--" + f.Name), Code(strings.Trim(f.DefValue, "[]")), usage})
		}
	})
	return Table([]string{"variable", "flag", "default", "what it sets"}, rows)
}

// Code sets a text as code; an empty text stays empty.
func Code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}
