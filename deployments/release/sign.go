package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/gpuready/gpuready/deployments/release/attest"
	"github.com/gpuready/gpuready/deployments/release/publish"
	"github.com/gpuready/gpuready/deployments/release/sign"
	"github.com/gpuready/gpuready/internal/program"
)

const signUsage = `Sign a release that was pushed, and publish it: the signature and the provenance of each image,
chart, bundle and catalog and the SBOM of each image become referrers in the registry; then the
list of the release gets its tag, REGISTRY/release:VERSION. What is signed is kept in signatures/
below --dir: nothing is signed twice, and a run that was killed goes on.

With --key, nothing but the registry is contacted. The password of a key comes from the variable
COSIGN_PASSWORD. With --keyless, Sigstore issues a certificate for the identity of this process
(in GitHub Actions, of the workflow; elsewhere cosign asks in a browser), and the signatures are
in its public log.

Examples:
  release sign --dir bin/release/v0.2.0 --key cosign.key
  release sign --dir bin/release/v0.2.0 --key awskms:///alias/releases
  release sign --dir bin/release/v0.2.0 --keyless
  release sign --dir bin/release/v0.2.0 --key cosign.key --dry-run -o json
`

const signExitCodes = `
Exit codes:
  0  all is signed, attached and published
  1  failed; the reason is on standard error
  2  wrong use
`

// runSign runs `release sign`.
func runSign(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := program.NewFlags("release sign", signUsage, signExitCodes, stdout)
	var o sign.Options
	f.StringVar(&o.Dir, "dir", "", "the folder of the release, as release build wrote it")
	addCosign(f, &o.Cosign)
	f.StringVar(&o.Cosign.Key, "key", "", "a private key: a file, or the URI of a key management service")
	keyless := f.Bool("keyless", false, "sign as an identity, with Sigstore's public services")
	addRegistry(f, &o.Registry, "where the release was pushed, host and path; empty: the release's own")
	f.BoolVar(&o.DryRun, "dry-run", false, "print what would be done")
	timeout := f.Duration("timeout", time.Hour, "for the whole command")
	output := f.StringP("output", "o", "table", "of the report: table or json")
	f.Env["key"] = "RELEASE_KEY"
	if err := f.Read(args); err != nil {
		return err
	}
	switch {
	case o.Dir == "":
		return program.UsageErrorf("--dir is missing; name the folder of the release, as bin/release/v0.2.0")
	case (o.Cosign.Key != "") == *keyless:
		return program.UsageErrorf("say either --key or --keyless")
	case *output != "table" && *output != "json":
		return program.UsageErrorf("--output is %q; say table or json", *output)
	}
	if err := f.RefuseArgs(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, *timeout, fmt.Errorf("not done after --timeout=%s; run it again to go on", *timeout))
	defer cancel()
	connect(&o.Cosign, &o.Registry)
	if *output == "table" && !o.DryRun {
		o.Done = func(s sign.Step) {
			if !s.Kept {
				fmt.Fprintf(stderr, "%s %s of %s\n", s.Action, s.What, s.Subject)
			}
		}
	}
	steps, err := sign.Run(ctx, o)
	if err != nil {
		return withCause(ctx, err)
	}
	if *output == "json" {
		e := json.NewEncoder(stdout)
		e.SetIndent("", "  ")
		return e.Encode(steps)
	}
	return printSteps(stdout, steps, o.DryRun)
}

func printSteps(w io.Writer, steps []sign.Step, dryRun bool) error {
	kept := 0
	for _, s := range steps {
		if s.Kept {
			kept++
		}
	}
	if dryRun {
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "ACTION\tWHAT\tSUBJECT\tSTATE")
		for _, s := range steps {
			state := "to do"
			if s.Kept {
				state = "done"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", s.Action, s.What, s.Subject, state)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	done := "done now"
	if dryRun {
		done = "to do"
	}
	_, err := fmt.Fprintf(w, "%d signatures, referrers and tags: %d %s, %d done before\n", len(steps), len(steps)-kept, done, kept)
	return err
}

// withCause adds to an error why the context ended, if it did.
func withCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return fmt.Errorf("%w (%w)", cause, err)
	}
	return err
}

// addCosign adds the flag with the program cosign.
func addCosign(f *program.Flags, c *attest.Cosign) {
	f.StringVar(&c.Program, "cosign", "cosign", "the program cosign, version 3")
	f.Env["cosign"] = "COSIGN"
}

// connect sets how the registry is reached.
func connect(c *attest.Cosign, r *attest.Registry) {
	c.Insecure = r.Insecure
	r.Options = []remote.Option{remote.WithTransport(publish.NewTransport(r.Insecure)), remote.WithUserAgent("gpuready-release")}
}

// addRegistry adds the flags of a registry.
func addRegistry(f *program.Flags, r *attest.Registry, usage string) {
	f.StringVar(&r.Prefix, "registry", "", usage)
	f.BoolVar(&r.Insecure, "insecure", false, "connect to the registry without TLS; localhost needs no flag")
	f.Env["registry"] = "REGISTRY"
}
