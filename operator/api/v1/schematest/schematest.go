// Package schematest lists the fields of a ClusterPolicy, and draws policies of arbitrary content
// for tests.
package schematest

import "github.com/gpuready/gpuready/operator/api/schema"

// Schema is the schema of ClusterPolicy.
type Schema struct{ *schema.Schema }

// Load loads the deployed definition.
func Load() (*Schema, error) {
	s, err := schema.Load()
	return &Schema{s}, err
}
