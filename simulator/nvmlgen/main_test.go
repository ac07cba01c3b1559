package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheStubsThatAreCheckedInAreThoseOfTheHeader(t *testing.T) {
	want, err := generate("../nvml")
	require.NoError(t, err)
	got, err := os.ReadFile("../nvml/stubs.c")
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "run: go run ./simulator/nvmlgen")
}

func TestAFolderWithoutTheHeaderIsRefused(t *testing.T) {
	require.ErrorContains(t, write(t.TempDir()), "nvml.h")
}
