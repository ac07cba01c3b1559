package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// recipe is a parsed Containerfile of this project's images: a base, labels, files from the
// build's context, and the program to run. Every other instruction is refused, above all RUN.
// So an image contains only what was built and checked outside, and nothing depends on the
// network or the clock.
type recipe struct {
	Base       string            // the default of ARG BASE
	Args       []string          // names, including BASE
	Labels     map[string]string // values as written, with variables
	Files      []copied
	User       string   // "uid:gid"
	Entrypoint []string // the program and its first arguments
}

// copied is one file that COPY puts into the image.
type copied struct {
	Source string // in the context: "lib/libcuda.so"
	Path   string // in the image, absolute
	Mode   fs.FileMode
}

// parseRecipe parses a Containerfile. Its errors begin with the number of the line.
func parseRecipe(text string) (recipe, error) {
	r := recipe{Labels: map[string]string{}}
	from := false
	for _, line := range instructions(text) {
		name, rest, _ := strings.Cut(line.text, " ")
		rest = strings.TrimSpace(rest)
		var err error
		switch name {
		case "ARG":
			arg, value, _ := strings.Cut(rest, "=")
			if !slices.Contains(r.Args, arg) {
				r.Args = append(r.Args, arg)
			}
			if arg == "BASE" && !from {
				r.Base = value
			}
		case "FROM":
			if from || rest != "${BASE}" {
				err = fmt.Errorf("FROM %s: one FROM ${BASE} is required", rest)
			}
			from = true
		case "LABEL":
			err = parseLabels(rest, r.Labels)
		case "COPY":
			var files []copied
			files, err = parseCopy(rest)
			r.Files = append(r.Files, files...)
		case "USER":
			r.User = rest
		case "ENTRYPOINT":
			r.Entrypoint, err = parseEntrypoint(rest)
		default:
			err = fmt.Errorf("%s is not among ARG, FROM, LABEL, COPY, USER, ENTRYPOINT; what an image holds is built before it and copied in", name)
		}
		if err != nil {
			return recipe{}, fmt.Errorf("line %d: %w", line.number, err)
		}
	}
	switch {
	case !from || r.Base == "":
		return recipe{}, fmt.Errorf("line 1: ARG BASE=… and FROM ${BASE} are required")
	case len(r.Entrypoint) == 0:
		return recipe{}, fmt.Errorf("line 1: an ENTRYPOINT is required")
	case r.User == "":
		return recipe{}, fmt.Errorf("line 1: a USER is required, be it 0:0")
	}
	return r, nil
}

type instruction struct {
	number int
	text   string
}

// instructions joins continued lines and leaves comments out.
func instructions(text string) []instruction {
	var all []instruction
	continued, number := false, 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		body, more := strings.CutSuffix(line, "\\")
		if continued {
			all[len(all)-1].text += " " + strings.TrimSpace(body)
		} else {
			all = append(all, instruction{number, strings.TrimSpace(body)})
		}
		continued = more
	}
	return all
}

// parseLabels parses `key="value" key="value"` into a map.
func parseLabels(text string, into map[string]string) error {
	for text != "" {
		key, rest, ok := strings.Cut(text, "=")
		quoted, err := strconv.QuotedPrefix(rest)
		if !ok || err != nil {
			return fmt.Errorf("LABEL %s: key=\"value\" is required", text)
		}
		if into[key], err = strconv.Unquote(quoted); err != nil {
			return fmt.Errorf("LABEL %s: %w", text, err)
		}
		text = strings.TrimSpace(rest[len(quoted):])
	}
	return nil
}

// parseCopy parses `--chmod=0755 source… destination`.
func parseCopy(text string) ([]copied, error) {
	words := strings.Fields(text)
	octal, ok := strings.CutPrefix(text, "--chmod=")
	if !ok || len(words) < 3 {
		return nil, fmt.Errorf("COPY %s: --chmod=MODE SOURCE… DESTINATION is required, so that a builder's umask does not matter", text)
	}
	octal, _, _ = strings.Cut(octal, " ")
	mode, err := strconv.ParseUint(octal, 8, 9)
	if err != nil {
		return nil, fmt.Errorf("COPY %s: mode %s: octal digits up to 0777 are required", text, octal)
	}
	sources, to := words[1:len(words)-1], words[len(words)-1]
	if !path.IsAbs(to) || len(sources) > 1 && !strings.HasSuffix(to, "/") {
		return nil, fmt.Errorf("COPY %s: an absolute destination is required, with a slash at its end for several files", text)
	}
	var files []copied
	for _, source := range sources {
		if path.IsAbs(source) || !fs.ValidPath(source) || strings.ContainsAny(source, "*?[$") {
			return nil, fmt.Errorf("COPY %s: the name of one file below the context is required", source)
		}
		f := copied{Source: source, Path: to, Mode: fs.FileMode(mode)}
		if strings.HasSuffix(to, "/") {
			f.Path = path.Join(to, path.Base(source))
		}
		files = append(files, f)
	}
	return files, nil
}

// parseEntrypoint parses the JSON form of ENTRYPOINT; the other form would need a shell.
func parseEntrypoint(text string) ([]string, error) {
	var words []string
	if err := json.Unmarshal([]byte(text), &words); err != nil || len(words) == 0 {
		return nil, fmt.Errorf("ENTRYPOINT %s: [\"program\"] is required: there is no shell for the other form", text)
	}
	return words, nil
}
