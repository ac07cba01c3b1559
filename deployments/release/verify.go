package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/gpuready/gpuready/deployments/release/contents"
	"github.com/gpuready/gpuready/deployments/release/verify"
	"github.com/gpuready/gpuready/internal/program"
)

const verifyUsage = `Verify a published release as a stranger would: everything is pulled anew from the registry, and
compared with what is signed. The list of the release must be signed; each tag must stand for the
digest in that list; each image, chart, bundle and catalog must be signed, and have the provenance
of this version and commit; each blob must have its digest; the SBOM of each image must list its
files and packages, no more and no less; SHA256SUMS and the files must agree.

Examples:
  release verify --registry registry.example.com/gpuready --version v0.2.0 --key cosign.pub
  release verify --registry registry.example.com/gpuready --version v0.2.0 --key cosign.pub \
    --files ~/Downloads
  release verify --registry ghcr.io/gpuready --version v0.2.0 \
    --issuer https://token.actions.githubusercontent.com \
    --identity https://github.com/gpuready/gpuready/.github/workflows/release.yaml@refs/tags/v0.2.0
  release verify --registry registry.example.com/gpuready --version v0.2.0 --key cosign.pub \
    -o policy | kubectl apply -f -
`

// exitRefused ends `release verify` when something is not as it was signed.
const exitRefused = 3

const verifyExitCodes = `
Exit codes:
  0  the release is as it was signed
  1  it could not be checked; the reason is on standard error
  2  wrong use
  3  refused: something is not as it was signed, or not signed; each such thing is listed
`

// runVerify runs `release verify`.
func runVerify(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("release verify", verifyUsage, verifyExitCodes, stdout)
	var o verify.Options
	addRegistry(f, &o.Registry, "where the release is, host and path")
	f.StringVar(&o.Version, "version", "", "of the release, as v0.2.0")
	addCosign(f, &o.Cosign)
	f.StringVar(&o.Cosign.Key, "key", "", "the public key of who publishes it: a file, or a URI")
	f.StringVar(&o.Cosign.Identity, "identity", "", "without a key: the identity that must have signed it")
	f.StringVar(&o.Cosign.Issuer, "issuer", "", "without a key: who must have vouched for that identity, a URI")
	f.StringVar(&o.Builder, "builder", "", "the builder that the provenance must name; empty: any")
	f.StringVar(&o.Revision, "revision", "", "the commit that must have been built; empty: the one that the release names")
	f.StringVar(&o.Files, "files", "", "a folder with downloaded files of the release, to check as well")
	namespace := f.String("namespace", "gpuready", "of -o policy: whose pods it confines")
	f.StringVar(&o.Save, "save", "", "an empty folder for the list and the files of the release, if it is as it was signed")
	timeout := f.Duration("timeout", time.Hour, "for the whole command")
	output := f.StringP("output", "o", "table", "table, json or policy, an admission policy that allows this release's images only")
	f.Env["key"], f.Env["version"] = "RELEASE_PUBLIC_KEY", "VERSION"
	if err := f.Read(args); err != nil {
		return err
	}
	switch {
	case !contents.Registry.MatchString(o.Registry.Prefix):
		return program.UsageErrorf("--registry is %q; name host and path, as registry.example.com/gpuready", o.Registry.Prefix)
	case !contents.Version.MatchString(o.Version):
		return program.UsageErrorf("--version is %q; name a version as v0.2.0", o.Version)
	case (o.Cosign.Key != "") == (o.Cosign.Identity != "") || (o.Cosign.Identity != "") != (o.Cosign.Issuer != ""):
		return program.UsageErrorf("say whose signature counts: either --key, or --identity and --issuer")
	case *output != "table" && *output != "json" && *output != "policy":
		return program.UsageErrorf("--output is %q; say table, json or policy", *output)
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done after --timeout=%s", *timeout))
	defer cancel()
	connect(&o.Cosign, &o.Registry)
	o.Progress = func(name string) { fmt.Fprintf(stderr, "verifying %s\n", name) }
	result, err := verify.Run(ctx, o)
	if err != nil {
		return withCause(ctx, err)
	}
	failures := result.Failures()
	for _, c := range failures {
		fmt.Fprintf(stderr, "REFUSED: %v\n", &verify.RefusedError{Check: c})
	}
	if err := printResult(stdout, result, *output, *namespace); err != nil {
		return err
	}
	if len(failures) > 0 {
		return program.WithExitCode(exitRefused, fmt.Errorf("%s of %s is refused: %d of %d checks failed, see above", o.Version, o.Registry.Prefix, len(failures), len(result.Checks)))
	}
	return nil
}

func printResult(w io.Writer, r verify.Result, format, namespace string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "policy":
		if len(r.Failures()) > 0 {
			return nil // no policy for what is refused
		}
		policy, err := verify.Policy(r.Release, namespace)
		if err != nil {
			return err
		}
		_, err = w.Write(policy)
		return err
	}
	if err := printTable(w, r.Checks); err != nil {
		return err
	}
	if len(r.Failures()) > 0 {
		return nil
	}
	if r.Origin != r.Registry {
		fmt.Fprintf(w, "It was made for %s: its chart and manifests name images there.\n", r.Origin)
	}
	_, err := fmt.Fprintf(w, "gpuready %s, commit %s, is as it was signed: %d checks, %.0f MB pulled, %.1f s\n", r.Version, r.Revision, len(r.Checks), float64(r.Bytes)/1e6, r.Seconds)
	return err
}

// columns are the checks in the order of the table.
var columns = []string{verify.Tag, verify.Signature, verify.Provenance, verify.Blobs, verify.SBOM, verify.List}

// printTable prints a line for each subject, with a column for each check.
func printTable(w io.Writer, checks []verify.Check) error {
	var subjects []string
	cells := map[string]map[string]string{}
	for _, c := range checks {
		if cells[c.Subject] == nil {
			subjects = append(subjects, c.Subject)
			cells[c.Subject] = map[string]string{}
		}
		switch {
		case !c.OK:
			cells[c.Subject][c.Name] = "REFUSED"
		case c.Summary != "":
			cells[c.Subject][c.Name] = c.Summary
		default:
			cells[c.Subject][c.Name] = "ok"
		}
	}
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "SUBJECT\t"+strings.ToUpper(strings.Join(columns, "\t")))
	for _, s := range subjects {
		line := []string{s}
		for _, c := range columns {
			line = append(line, cmp.Or(cells[s][c], "-"))
		}
		fmt.Fprintln(table, strings.Join(line, "\t"))
	}
	return table.Flush()
}
