package main

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCheckConfigChecksEachFileOfAFolder(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "good"), sliced(2))
	writeFile(t, filepath.Join(dir, "bad"), "flags: {migStrategy: mix}\n")
	writeFile(t, filepath.Join(dir, "..data", "hidden"), "x")
	var out, errs bytes.Buffer
	require.Equal(t, 1, checkConfig([]string{"--config-dir", dir}, &out, &errs))
	require.Equal(t, filepath.Join(dir, "good")+": would be served\n", out.String())
	require.Contains(t, errs.String(), filepath.Join(dir, "bad")+": flags.migStrategy")

	out.Reset()
	require.Zero(t, checkConfig([]string{"--config-dir", dir, "--config", "good"}, &out, io.Discard))
	require.Contains(t, out.String(), "sharing.timeSlicing.resources[0].replicas")
	require.Equal(t, 2, checkConfig([]string{"--config-dir", dir, "--config", "none"}, io.Discard, &errs))
	require.Equal(t, 2, checkConfig([]string{"--config-dir", dir, "file"}, io.Discard, &errs))
}

func TestDevicesAcceptsAConfigurationName(t *testing.T) {
	dir, host := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(dir, "a"), sliced(2))
	writeFile(t, filepath.Join(dir, "b"), sliced(3))
	o, err := parse([]string{"--config-dir", dir, "--config", "b", "--host-root", host}, io.Discard)
	require.NoError(t, err)
	o, err = o.resolve()
	require.NoError(t, err)
	require.Equal(t, 3, o.config.Sharing.TimeSlicing.Resources[0].Replicas)
	var errs bytes.Buffer
	require.Equal(t, 2, run(t.Context(), time.Now(), []string{"devices", "--config-dir", dir, "--host-root", host}, io.Discard, &errs))
	require.Contains(t, errs.String(), "name one with --config: there are a, b")
	for _, args := range [][]string{
		{"--config", "a"}, {"--config-dir", dir, "--config-file", "x"}, {"--config-dir", dir, "--node-label", "x"}, {"--config-dir", dir, "--fallback-strategies", "x"},
	} {
		_, err := parse(args, io.Discard)
		require.Error(t, err, args)
	}
}
