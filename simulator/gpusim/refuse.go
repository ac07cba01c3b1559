package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpuready/gpuready/internal/suggest"
	"github.com/gpuready/gpuready/simulator/gpusim/root"
	"github.com/gpuready/gpuready/simulator/state"
)

func refuse() command {
	return command{
		name:    "refuse",
		summary: "make calls of NVML fail or hang, or work again",
		text: `
From now on the calls that --call names, functions of nvml.h separated by commas,
answer with an error of NVML (--code: a number, or a name that gpusim fail --help
lists), take --delay before they answer, or both. With --gpu only calls whose first
argument is a handle of this GPU do. none as --code and 0 as --delay end it, --call
all --code none ends it for all calls. Programs that run notice it at once; who waits
goes on. Programs with other versions of a function (nvmlInit, nvmlInit_v2) call that
one.`,
		example: "gpusim refuse --call nvmlDeviceGetNvLinkState --code 999\n" +
			"gpusim refuse --call nvmlDeviceGetMemoryInfo,nvmlDeviceGetMemoryInfo_v2 --gpu 3 --code gpu-is-lost\n" +
			"gpusim refuse --call nvmlShutdown --delay 60s\n" +
			"gpusim refuse --call all --code none",
		begin: func(c *call) func() error {
			c.rootFlag()
			c.gpuFlag()
			calls := c.StringSlice("call", nil, "functions of NVML, or all")
			code := c.String("code", "", "what they answer")
			delay := c.Duration("delay", 0, "how long they take")
			c.Lookup("delay").DefValue = "0"
			return func() error { return c.refuse(*calls, *code, *delay) }
		},
	}
}

func (c *call) refuse(calls []string, code string, delay time.Duration) error {
	number, err := state.ParseError(code)
	switch {
	case len(calls) == 0:
		return usagef("give --call")
	case !c.Changed("code") && !c.Changed("delay"):
		return usagef("give --code or --delay")
	case err != nil:
		return usagef("--code: %w", err)
	case delay < 0 || delay > state.MaxDelay:
		return usagef("--delay: %v is not 0 to %v", delay, time.Duration(state.MaxDelay))
	}
	all := slices.Equal(calls, []string{"all"})
	switch {
	case all && (number != 0 || delay != 0):
		return usagef("--call: all calls cannot fail at once; name some, or say --code none")
	case all:
		calls = nil
	default:
		if err := checkCalls(c.driver(), calls); err != nil {
			return err
		}
	}
	f, err := c.driver().Open()
	if err != nil {
		return err
	}
	err = f.Update(func(s *state.State) error {
		gpu := uint32(state.None)
		if *c.gpu != "" {
			index, err := c.find(s)
			if err != nil {
				return err
			}
			gpu = uint32(index)
		}
		return s.SetRules(calls, gpu, number, delay)
	})
	return errors.Join(err, f.Close())
}

// checkCalls returns an error that names the first that is no function of the library.
func checkCalls(r *root.Root, calls []string) error {
	of, err := r.StatePath()
	if err != nil {
		return err
	}
	library := filepath.Join(filepath.Dir(of), "libnvidia-ml.so.1")
	file, err := elf.Open(library)
	if err != nil {
		return err
	}
	symbols, err := file.DynamicSymbols()
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("%s: %w", library, err)
	}
	var known []string
	for _, s := range symbols {
		// A table of the library's own needs no driver.
		if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "nvml") && s.Name != "nvmlErrorString" {
			known = append(known, s.Name)
		}
	}
	for _, name := range calls {
		if !slices.Contains(known, name) {
			return usagef("--call: nvml.h has no function %.100q that can fail%s", name, suggest.Similar(name, known))
		}
	}
	return nil
}
