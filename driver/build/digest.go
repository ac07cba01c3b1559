package build

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/driver/build/folder"
)

// digestFormat changes when Compile gives another output for the same Request.
const digestFormat = "1"

// Digest returns a SHA-256, in hexadecimal, of all inputs of the modules: the kernel's release,
// configuration and symbols, the compiler, the driver and its sources, and flags.
func Digest(ctx context.Context, r Request) (string, error) {
	r.setDefaults()
	c, err := findCompiler(ctx, r.Headers)
	if err != nil {
		return "", r.buildError(err)
	}
	source := r.SourceDigest
	if source == "" {
		if source, err = folder.DigestFolder(ctx, r.Source); err != nil {
			return "", err
		}
	}
	h := folder.NewDigest("modules", digestFormat, r.Release, c.version, r.Version, r.Kind, source, strings.Join(r.Modules, " "))
	if r.Halves {
		h.Add("halves")
	}
	for _, name := range slices.Sorted(maps.Keys(r.Variables)) {
		h.Add(name, r.Variables[name])
	}
	err = h.AddFiles(filepath.Join(r.Headers.Output, configFile), filepath.Join(r.Headers.Output, symbolsFile))
	return h.String(), err
}
