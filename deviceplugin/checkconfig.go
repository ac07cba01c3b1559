package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	strict "github.com/gpuready/gpuready/internal/config"
)

const checkHelp = `gpu-device-plugin check-config checks a configuration file as the device plugin
would, and prints what would be in force: what the file sets, and the defaults.
It needs no GPU and looks at no environment. FILE is - for the standard input.

Usage:
  gpu-device-plugin check-config FILE [flags]

Examples:
  gpu-device-plugin check-config config.yaml
  gpu-device-plugin check-config config.yaml -o json
  gpu-device-plugin check-config old.yaml --unknown-keys=warn
  kubectl get configmap plugin -o jsonpath='{.data.config}' | gpu-device-plugin check-config -

Flags:
%s
Exit codes:
  0  the file would be served, or --help
  1  it would be refused; stderr says which fields are wrong and what to write
  2  bad flag, or the file cannot be read
`

// checkConfig is the subcommand. With the file's path it takes only what the
// file is judged by, and no setting: those would win over it.
func checkConfig(args []string, stdout, stderr io.Writer) int {
	o := &options{origin: map[string]string{}}
	settings := o.flags(io.Discard) // for the defaults

	f := pflag.NewFlagSet("gpu-device-plugin check-config", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.unknownKeys, "unknown-keys", "refuse", "what becomes of keys that are not known: refuse, or warn")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.Usage = func() { fmt.Fprintf(stderr, checkHelp, f.FlagUsagesWrapped(100)) }
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, exitUsage, err)
	case f.NArg() != 1:
		return fail(stderr, exitUsage, errors.New("name one file; see gpu-device-plugin check-config --help"))
	case o.unknownKeys != "refuse" && o.unknownKeys != "warn":
		return fail(stderr, exitUsage, fmt.Errorf("--unknown-keys: %q is not known, only refuse or warn", o.unknownKeys))
	case o.output != "table" && o.output != "json":
		return fail(stderr, exitUsage, fmt.Errorf("--output: %q is not known, only table or json", o.output))
	}
	data, err := readInput(f.Arg(0))
	if err != nil {
		return fail(stderr, exitUsage, err)
	}
	o.configFile = f.Arg(0)
	if err := o.readData(data, settings); err != nil {
		return refused(stderr, err)
	}
	for _, key := range o.ignored {
		fmt.Fprintf(stderr, "gpu-device-plugin: %s: %s: %s; ignored\n", o.configFile, key.Path, key.Hint)
	}
	if o.config, err = o.whole(); err != nil {
		return refused(stderr, err)
	}
	if err := o.print(stdout); err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

func readInput(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, strict.MaxBytes+1))
	}
	return os.ReadFile(path)
}

// refused prints each error on a line of its own.
func refused(stderr io.Writer, err error) int {
	for _, err := range parts(err) {
		fail(stderr, exitFailed, err)
	}
	return exitFailed
}

// print prints the configuration in force.
func (o *options) print(w io.Writer) error {
	if o.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(o.config)
	}
	inForce, err := leaves(o.config)
	if err != nil {
		return err
	}
	fromFile, err := leaves(o.file)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tFROM")
	for _, path := range slices.Sorted(maps.Keys(inForce)) {
		from := "default"
		if _, set := fromFile[path]; set {
			from = o.configFile
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", path, inForce[path], from)
	}
	return t.Flush()
}

// leaves returns each value of a configuration as JSON, by its path.
func leaves(c *config.Config) (map[string]string, error) {
	data, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var generic any
	if err := decoder.Decode(&generic); err != nil {
		return nil, err
	}
	all := map[string]string{}
	flatten(all, "", generic)
	return all, nil
}

func flatten(all map[string]string, path string, v any) {
	switch v := v.(type) {
	case map[string]any:
		for key, value := range v {
			at := key
			if path != "" {
				at = path + "." + key
			}
			flatten(all, at, value)
		}
		return
	case []any:
		for i, item := range v {
			if _, keys := item.(map[string]any); keys {
				flatten(all, fmt.Sprintf("%s[%d]", path, i), item)
				continue
			}
			text, _ := json.Marshal(v) // it came from JSON
			all[path] = string(text)
			return
		}
		return
	}
	text, _ := json.Marshal(v)
	all[path] = string(text)
}
