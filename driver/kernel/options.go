package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/gpuready/gpuready/internal/host"
	"github.com/gpuready/gpuready/internal/suggest"
)

const maxOptions = 1 << 20 // bytes of a file of options

// Param is one parameter of a module.
type Param struct {
	Name     string
	Value    string // "" with HasValue false: an enabled switch
	HasValue bool
	Source   string // file and line, for people
}

// String formats the parameter for the kernel: a value with spaces is quoted.
func (p Param) String() string {
	switch {
	case !p.HasValue:
		return p.Name
	case strings.ContainsAny(p.Value, " \t"):
		return p.Name + `="` + p.Value + `"`
	}
	return p.Name + "=" + p.Value
}

// Options holds the configuration of modules: their parameters and soft dependencies.
type Options struct {
	Params map[string][]Param  // by module; the last of several with one name applies
	Before map[string][]string // soft dependencies, by module
	// Configured holds the modules with a file of ReadConf, and the file's path.
	Configured map[string]string
	// Ignored lists shell commands that modprobe would run, for the log.
	Ignored []string
}

func newOptions() Options {
	return Options{Params: map[string][]Param{}, Before: map[string][]string{}, Configured: map[string]string{}}
}

// ReadModprobe reads the files *.conf of folders by the rules of modprobe.d(5): of files with
// the same name the first folder's counts, and files are read in the order of their names.
func ReadModprobe(root *host.Root, dirs ...string) (Options, error) {
	o, files := newOptions(), map[string]string{}
	for _, dir := range dirs {
		found, err := root.Glob(dir, "*.conf")
		if err != nil {
			return o, err
		}
		for _, p := range found {
			if _, known := files[path.Base(p)]; !known {
				files[path.Base(p)] = p
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		data, err := root.ReadFile(files[name], maxOptions)
		if err != nil {
			return o, err
		}
		if err := o.addModprobe(root.Path(files[name]), string(data)); err != nil {
			return o, err
		}
	}
	return o, nil
}

// addModprobe reads one file of modprobe.d. It ignores aliases and deny lists, which do not
// apply to modules that are loaded by name.
func (o *Options) addModprobe(file, text string) error {
	text = strings.ReplaceAll(text, "\\\n", " ")
	number := 0
	for line := range strings.Lines(text) {
		number++
		source := fmt.Sprintf("%s:%d", file, number)
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") {
			continue
		}
		name := NormalizeName(words[1])
		switch words[0] {
		case "options":
			_, rest, _ := strings.Cut(line, words[1])
			params, err := parseParams(rest, source)
			if err != nil {
				return err
			}
			o.Params[name] = append(o.Params[name], params...)
		case "softdep":
			o.Before[name] = append(o.Before[name], parseSoftdep(strings.Join(words[2:], " "))...)
		case "install", "remove":
			o.Ignored = append(o.Ignored, fmt.Sprintf("%s: %s %s", source, words[0], words[1]))
		}
	}
	return nil
}

// notParameters lists files of the vGPU driver's daemons beside the files of parameters.
var notParameters = []string{"gridd.conf", "nvidia-topologyd.conf"}

// ReadConf adds the parameters in <dir>/<module>.conf, the files that configure NVIDIA's
// driver containers: words "name=value" in one or several lines, and comments that begin with
// #. They override those of modprobe.d.
func (o *Options) ReadConf(root *host.Root, dir string) error {
	found, err := root.Glob(dir, "*.conf")
	if err != nil {
		return err
	}
	for _, p := range found {
		if slices.Contains(notParameters, path.Base(p)) {
			continue
		}
		data, err := root.ReadFile(p, maxOptions)
		if errors.Is(err, fs.ErrNotExist) { // a ConfigMap that changes meanwhile
			continue
		}
		if err != nil {
			return err
		}
		module := NormalizeName(strings.TrimSuffix(path.Base(p), ".conf"))
		o.Configured[module] = root.Path(p)
		number := 0
		for line := range strings.Lines(string(data)) {
			number++
			source := fmt.Sprintf("%s:%d", root.Path(p), number)
			if strings.HasPrefix(strings.TrimSpace(line), "options ") {
				return newError(ReasonParameterUnknown, module, nil,
					"%s: the file holds parameters alone, as in NVreg_Name=1, without the words of modprobe.d: remove \"options %s\"", source, module)
			}
			params, err := parseParams(line, source)
			if err != nil {
				return err
			}
			o.Params[module] = append(o.Params[module], params...)
		}
	}
	return nil
}

// parseParams splits a line as the kernel does (lib/cmdline.c, next_arg): at spaces outside
// double quotes.
func parseParams(line, source string) ([]Param, error) {
	var params []Param
	var word strings.Builder
	quoted, begun := false, false
	var wrong []string
	add := func() {
		if !begun {
			return
		}
		name, value, hasValue := strings.Cut(word.String(), "=")
		if !isParamName(name) {
			wrong = append(wrong, name)
		}
		params = append(params, Param{name, value, hasValue, source})
		word.Reset()
		begun = false
	}
scan:
	for _, c := range strings.TrimRight(line, "\r\n") {
		switch {
		case c < ' ' && c != '\t' || c == 0x7f || c == unicode.ReplacementChar || c == 0xa0:
			return nil, newError(ReasonParameterUnknown, "", nil, "%s: the line holds the character %q; write it without", source, c)
		case c == '"':
			quoted, begun = !quoted, true
		case !quoted && (c == ' ' || c == '\t'):
			add()
		case !quoted && !begun && c == '#':
			break scan
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if quoted {
		return nil, newError(ReasonParameterUnknown, "", nil, "%s: a double quote is not closed", source)
	}
	add()
	if len(wrong) > 0 {
		return nil, newError(ReasonParameterUnknown, "", nil, "%s: %q is not the name of a parameter; write NAME=VALUE", source, truncateText(wrong[0]))
	}
	return params, nil
}

// isParamName reports whether a name is valid for a parameter: letters, digits, "_" and "-",
// optionally after a module's name and ".".
func isParamName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") == ""
}

// CheckParams rejects parameters that the module does not have, which the kernel would silently
// ignore, and invalid numbers.
func CheckParams(m Info, params []Param) error {
	for _, p := range params {
		// The kernel itself accepts these for any module (kernel/module/main.c).
		if p.Name == "async_probe" || p.Name == "dyndbg" || strings.HasPrefix(p.Name, m.Name+".dyndbg") {
			continue
		}
		kind, known := m.Params[strings.ReplaceAll(p.Name, "-", "_")]
		if !known {
			return newError(ReasonParameterUnknown, m.Name, nil, "%s: module %s %s has no parameter %q%s; gpu-driver modinfo %s lists them",
				p.Source, m.Name, m.Version, truncateText(p.Name), suggest.Hint(truncateText(p.Name), slices.Sorted(maps.Keys(m.Params))), m.Name)
		}
		if err := checkValue(kind, p); err != nil {
			return newError(ReasonParameterUnknown, m.Name, nil, "%s: parameter %s of module %s is %s", p.Source, p.Name, m.Name, err)
		}
	}
	return nil
}

// bits holds the sizes of the number types of include/linux/moduleparam.h; negative: unsigned.
var bits = map[string]int{
	"byte": -8, "short": 16, "ushort": -16, "int": 32, "uint": -32, "hexint": -32, "long": 64, "ulong": -64, "ullong": -64,
}

// checkValue checks a value by the rules of the kernel's param_set functions
// (kernel/params.c, kstrtobool).
func checkValue(kind string, p Param) error {
	width, number := bits[kind]
	switch {
	case kind == "charp" && !p.HasValue:
		return fmt.Errorf("a text: write %s=TEXT", p.Name)
	case kind == "bool" && p.HasValue && !slices.Contains([]string{"on", "off"}, p.Value) &&
		(p.Value == "" || !strings.Contains("yY1tTnN0fF", p.Value[:1])):
		return fmt.Errorf("a switch, y or n, not %q", truncateText(p.Value))
	case !number:
		return nil
	}
	var err error
	if width < 0 {
		_, err = strconv.ParseUint(p.Value, 0, -width)
	} else {
		_, err = strconv.ParseInt(p.Value, 0, width)
	}
	hexadecimal := strings.HasPrefix(strings.ToLower(p.Value), "0x")
	if err != nil || strings.ContainsAny(p.Value, "_oObB") && !hexadecimal {
		return fmt.Errorf("a number of type %s, not %q", kind, truncateText(p.Value))
	}
	return nil
}
