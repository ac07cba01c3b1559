package tomledit

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Key writes a path as a dotted key: plugins."io.containerd.grpc.v1.cri".enable_cdi.
func Key(path ...string) string {
	parts := make([]string, len(path))
	for i, part := range path {
		parts[i] = part
		if part == "" || strings.Trim(part, bare) != "" {
			parts[i] = quote(part)
		}
	}
	return strings.Join(parts, ".")
}

const bare = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

// Format writes a value in the syntax of TOML 1.0, on one line: a bool, string,
// integer, float, or an array or table of those. Others are an error.
func Format(value any) (string, error) {
	switch v := value.(type) {
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return float(v), nil
	case string:
		if !utf8.ValidString(v) {
			return "", fmt.Errorf("%q is not UTF-8, TOML cannot hold it", v)
		}
		return quote(v), nil
	case []string:
		list := make([]any, len(v))
		for i, s := range v {
			list[i] = s
		}
		return Format(list)
	case []any:
		parts, err := formatAll(v)
		return "[" + strings.Join(parts, ", ") + "]", err
	case map[string]any:
		return formatTable(v)
	}
	return "", fmt.Errorf("a %T cannot be written to TOML here", value)
}

func formatAll(list []any) ([]string, error) {
	parts := make([]string, len(list))
	for i, v := range list {
		var err error
		if parts[i], err = Format(v); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

func formatTable(table map[string]any) (string, error) {
	if len(table) == 0 {
		return "{}", nil
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(table)) {
		value, err := Format(table[key])
		if err != nil {
			return "", err
		}
		parts = append(parts, Key(key)+" = "+value)
	}
	return "{ " + strings.Join(parts, ", ") + " }", nil
}

func float(v float64) string {
	switch {
	case math.IsNaN(v):
		return "nan"
	case math.IsInf(v, 0):
		return strings.ToLower(strconv.FormatFloat(v, 'g', -1, 64))
	}
	s := strconv.FormatFloat(v, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
