package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/config"
	strict "github.com/gpuready/gpuready/internal/config"
)

const checkHelp = `gpu-device-plugin check-config checks a configuration file as the device plugin
would, and prints the resulting settings: those of the file, and the defaults.
It needs no GPU and ignores the environment: the plugin's flags
and variables, including DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, override
the printed settings. FILE is - for the standard input.

Usage:
  gpu-device-plugin check-config FILE [flags]
  gpu-device-plugin check-config --config-dir FOLDER                 every file of the folder, one line each
  gpu-device-plugin check-config --config-dir FOLDER --config NAME   the same as check-config FOLDER/NAME

Examples:
  gpu-device-plugin check-config config.yaml
  gpu-device-plugin check-config config.yaml -o json
  gpu-device-plugin check-config old.yaml --unknown-keys=warn
  kubectl get configmap plugin -o jsonpath='{.data.config}' | gpu-device-plugin check-config -

Flags:
%s
Exit codes:
  0  every file is valid, or --help
  1  a file is invalid; stderr says which fields are wrong and what to write
  2  bad flag, or the file cannot be read
`

// checkConfig runs the check-config subcommand. It has only the flags that affect the
// check, not the settings: those would override the file.
func checkConfig(args []string, stdout, stderr io.Writer) int {
	o := &options{origin: map[string]string{}}
	settings := o.flags(io.Discard) // for the defaults

	f := pflag.NewFlagSet("gpu-device-plugin check-config", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&o.configs.dir, "config-dir", "", "`folder` of configuration files to check")
	f.StringVar(&o.configs.name, "config", "", "with --config-dir: check the file of this `name` alone")
	f.StringVar(&o.unknownKeys, "unknown-keys", "refuse", "what to do with unknown keys: refuse, or warn")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	f.Usage = func() { fmt.Fprintf(stderr, checkHelp, f.FlagUsagesWrapped(100)) }
	switch err := f.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		return fail(stderr, exitUsage, err)
	case o.configs.dir == "" && o.configs.name != "":
		return fail(stderr, exitUsage, errors.New("--config names a file in --config-dir; add that"))
	case o.configs.dir != "" && f.NArg() > 0:
		return fail(stderr, exitUsage, errors.New("name a file or --config-dir, not both"))
	case o.configs.dir == "" && f.NArg() != 1:
		return fail(stderr, exitUsage, errors.New("name one file; see gpu-device-plugin check-config --help"))
	case o.unknownKeys != "refuse" && o.unknownKeys != "warn":
		return fail(stderr, exitUsage, fmt.Errorf("--unknown-keys: %q is not known, only refuse or warn", o.unknownKeys))
	case o.output != "table" && o.output != "json":
		return fail(stderr, exitUsage, fmt.Errorf("--output: %q is not known, only table or json", o.output))
	}
	switch {
	case o.configs.dir == "":
		data, err := readInput(f.Arg(0))
		if err != nil {
			return fail(stderr, exitUsage, err)
		}
		return o.checkOne(f.Arg(0), data, settings, stderr, o.printer(stdout))
	case o.configs.name != "":
		data, err := o.configs.read(o.configs.name)
		if err != nil {
			return fail(stderr, exitUsage, err)
		}
		return o.checkOne(filepath.Join(o.configs.dir, o.configs.name), data, settings, stderr, o.printer(stdout))
	}
	return o.checkAll(stdout, stderr)
}

// checkAll prints one line for each valid file.
func (o *options) checkAll(stdout, stderr io.Writer) int {
	names, err := o.configs.list()
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: the folder has no configuration", o.configs.dir)
	}
	if err != nil {
		return fail(stderr, exitUsage, err)
	}
	code := 0
	for _, name := range names {
		one := &options{origin: map[string]string{}, unknownKeys: o.unknownKeys}
		settings := one.flags(io.Discard)
		one.unknownKeys = o.unknownKeys
		path := filepath.Join(o.configs.dir, name)
		data, err := o.configs.read(name)
		if err != nil {
			code = fail(stderr, exitFailed, err)
			continue
		}
		code = max(code, one.checkOne(path, data, settings, stderr, func() error {
			_, err := fmt.Fprintln(stdout, path+": would be served")
			return err
		}))
	}
	return code
}

// checkOne checks a file and calls served if it is valid.
func (o *options) checkOne(path string, data []byte, settings *pflag.FlagSet, stderr io.Writer, served func() error) (code int) {
	o.configFile = path
	if err := o.readData(data, settings); err != nil {
		return refused(stderr, err)
	}
	for _, key := range o.ignored {
		fmt.Fprintf(stderr, "gpu-device-plugin: %s: %s: %s; ignored\n", o.configFile, key.Path, key.Hint)
	}
	var err error
	if o.config, err = o.mergeConfig(); err != nil {
		return refused(stderr, err)
	}
	if err := served(); err != nil {
		return fail(stderr, exitFailed, err)
	}
	return 0
}

func (o *options) printer(w io.Writer) func() error { return func() error { return o.printConfig(w) } }

func readInput(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, strict.MaxBytes+1))
	}
	return os.ReadFile(path)
}

// refused prints each error on its own line.
func refused(stderr io.Writer, err error) int {
	for _, err := range splitErrors(err) {
		fail(stderr, exitFailed, err)
	}
	return exitFailed
}

// printConfig prints the configuration in force.
func (o *options) printConfig(w io.Writer) error {
	if o.output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(o.config)
	}
	inForce, err := leafValues(o.config)
	if err != nil {
		return err
	}
	fromFile, err := leafValues(o.file)
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
func leafValues(c *config.Config) (map[string]string, error) {
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
