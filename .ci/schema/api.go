package main

import (
	"context"
	"path/filepath"

	"github.com/gpuready/gpuready/.ci/schema/openapi"
)

// api is the API against which manifests are checked.
type api struct {
	schemas *openapi.Schemas
	version string // of Kubernetes
}

// loadAPI reads the kinds of Kubernetes, ours and those of Node Feature Discovery.
func loadAPI(ctx context.Context) (api, error) {
	source, version, err := openapi.Source(ctx)
	if err != nil {
		return api{}, err
	}
	schemas, err := openapi.Load(filepath.Join(source, "api/openapi-spec/v3"))
	if err != nil {
		return api{}, err
	}
	nfd, _, err := openapi.Module(ctx, "test/lab/binaries/nfd", "sigs.k8s.io/node-feature-discovery")
	if err != nil {
		return api{}, err
	}
	definitions, err := findManifests("../../deployments/static/operator.yaml", filepath.Join(nfd, "deployment/base/nfd-crds/nfd-api-crds.yaml"))
	if err != nil {
		return api{}, err
	}
	return api{schemas, version}, define(schemas, definitions)
}
