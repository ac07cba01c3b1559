// Schema checks manifests against their API: the OpenAPI files in the source of
// Kubernetes, in the version that test/lab/cluster runs, and the definitions of
// deployments/static/operator.yaml and Node Feature Discovery. Run it in .ci/schema.
//
// go run . ../../deployments/static
//
// It reports unknown fields, wrong types, missing fields, repeated keys and words that
// YAML 1.1 takes for a boolean, with file and line. Exit code 1 means that it found
// errors, 2 that it could not check anything.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
)

// errWrong means that the manifests have errors, which were printed.
var errWrong = errors.New("manifests are wrong")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	switch {
	case errors.Is(err, errWrong):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(2)
	}
}

func run(ctx context.Context, paths []string) error {
	if len(paths) == 0 {
		return fmt.Errorf("usage: go run . FILE|FOLDER...")
	}
	files, err := findManifests(paths...)
	if err != nil {
		return err
	}
	api, err := loadAPI(ctx)
	if err != nil {
		return err
	}
	found, err := checkManifests(api.schemas, files)
	if err != nil {
		return err
	}
	for _, w := range found.wrong {
		fmt.Println(w)
	}
	if len(found.wrong) > 0 {
		return errWrong
	}
	fmt.Printf("schema: %d documents in %d files agree with Kubernetes %s\n", found.documents, len(files), api.version)
	return nil
}
