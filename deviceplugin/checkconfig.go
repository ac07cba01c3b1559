package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/deviceplugin/settings"
	"github.com/gpuready/gpuready/internal/cmdline"
	baseconfig "github.com/gpuready/gpuready/internal/config"
	"github.com/gpuready/gpuready/internal/program"
)

const checkHelp = `gpu-device-plugin check-config checks a configuration file as the device plugin
would, and prints the resulting settings: those of the file, and the defaults.
It needs no GPU and ignores the environment: the plugin's flags
and variables, including DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS, override
the printed settings. FILE is - for the standard input.

Usage:
  gpu-device-plugin check-config FILE [flags]
  gpu-device-plugin check-config --config-dir FOLDER                 every file, one line each
  gpu-device-plugin check-config --config-dir FOLDER --config NAME   as check-config FOLDER/NAME

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

// checkConfigCommand checks configuration files. It has only the flags that affect the check, not
// the settings: those would override the file.
func (c *commands) checkConfigCommand(_ context.Context, args []string) error {
	var folder, file, unknownKeys, output string
	f := pflag.NewFlagSet("gpu-device-plugin check-config", pflag.ContinueOnError)
	f.SortFlags = false
	f.StringVar(&folder, "config-dir", "", "`folder` of configuration files to check")
	f.StringVar(&file, "config", "", "with --config-dir: check the file of this `name` alone")
	f.StringVar(&unknownKeys, "unknown-keys", "refuse", "what to do with unknown keys: refuse, or warn")
	f.StringVarP(&output, "output", "o", "table", "table or json")
	f.Usage = func() { fmt.Fprintf(c.stdout, checkHelp, f.FlagUsagesWrapped(100)) }
	err := cmdline.Parse(f, args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return nil
	case err != nil:
		err = cmdline.AddHelp(err, f.Name())
	case folder == "" && file != "":
		err = errors.New("--config names a file in --config-dir; add that")
	case folder != "" && f.NArg() > 0:
		err = errors.New("name a file or --config-dir, not both")
	case folder == "" && f.NArg() != 1:
		err = errors.New("name one file; see gpu-device-plugin check-config --help")
	case unknownKeys != "refuse" && unknownKeys != "warn":
		err = fmt.Errorf("--unknown-keys: %q is not known, only refuse or warn", unknownKeys)
	case output != "table" && output != "json":
		err = fmt.Errorf("--output: %q is not known, only table or json", output)
	}
	if err != nil {
		return c.fail(program.Usage, err)
	}
	if folder != "" && file == "" {
		return c.checkFolder(folder, unknownKeys)
	}
	path := filepath.Join(folder, file)
	read := func() ([]byte, error) { return settings.ReadConfig(folder, file) }
	if folder == "" {
		path = f.Arg(0)
		read = func() ([]byte, error) { return readInput(path) }
	}
	data, err := read()
	if err != nil {
		return c.fail(program.Usage, err)
	}
	o, err := c.checkFile(path, data, unknownKeys)
	if err != nil {
		return err
	}
	if err := printConfig(c.stdout, o, output); err != nil {
		return c.fail(program.Failed, err)
	}
	return nil
}

// checkFolder prints one line for each valid file.
func (c *commands) checkFolder(folder, unknownKeys string) error {
	names, err := settings.ListConfigs(folder)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s: the folder has no configuration", folder)
	}
	if err != nil {
		return c.fail(program.Usage, err)
	}
	var failed error
	for _, name := range names {
		path := filepath.Join(folder, name)
		data, err := settings.ReadConfig(folder, name)
		if err != nil {
			failed = c.fail(program.Failed, err)
			continue
		}
		if _, err := c.checkFile(path, data, unknownKeys); err != nil {
			failed = err
			continue
		}
		if _, err := fmt.Fprintln(c.stdout, path+": would be served"); err != nil {
			return c.fail(program.Failed, err)
		}
	}
	return failed
}

// checkFile checks a file. It prints each mistake on its own line.
func (c *commands) checkFile(path string, data []byte, unknownKeys string) (*settings.Options, error) {
	o, err := settings.ParseFile(path, data, unknownKeys)
	if o != nil {
		for _, key := range o.Ignored {
			fmt.Fprintf(c.stderr, "%s: %s: %s: %s; ignored\n", programName, path, key.Path, key.Hint)
		}
	}
	for _, mistake := range settings.SplitErrors(err) {
		err = c.fail(program.Failed, mistake)
	}
	return o, err
}

func readInput(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, baseconfig.MaxBytes+1))
	}
	return os.ReadFile(path)
}

// printConfig prints the configuration in force.
func printConfig(w io.Writer, o *settings.Options, output string) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(o.Config)
	}
	values, err := o.Values()
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SETTING\tVALUE\tFROM")
	for _, v := range values {
		fmt.Fprintf(t, "%s\t%s\t%s\n", v.Path, v.JSON, v.From)
	}
	return t.Flush()
}
