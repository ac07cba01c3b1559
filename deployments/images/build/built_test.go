package main

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deployments/images/build/rootfs"
)

// built reads an image that `make images` built.
func built(t *testing.T, name string) rootfs.Image {
	t.Helper()
	dir := os.Getenv("GPUREADY_IMAGES")
	if dir == "" {
		t.Skip("GPUREADY_IMAGES does not name a folder that make images filled; make e2e-images does")
	}
	image, err := readArchive(filepath.Join(dir, name+".tar"))
	require.NoError(t, err)
	return image
}

func TestBuiltOperatorTrustsTheAuthoritiesOfItsBase(t *testing.T) {
	files := built(t, "operator").Tree
	require.Contains(t, files.Paths(), rootfs.Bundle)
	file := files[rootfs.Bundle]
	require.Equal(t, os.FileMode(0o444), file.Mode&0o444, "its user is nobody in particular")
	require.True(t, x509.NewCertPool().AppendCertsFromPEM(file.Text), "%s has no certificate", rootfs.Bundle)
	for rest := file.Text; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		_, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
	}
}
