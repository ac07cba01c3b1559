package attest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Cosign runs the program cosign. It signs and verifies with a key, without a transparency log, or
// keyless: with a certificate that Sigstore issues for an identity, and its public log.
type Cosign struct {
	Program  string // its path
	Key      string // a file or the URI of a key management service; "": keyless
	Identity string // keyless, to verify: who must have signed, as in the certificate
	Issuer   string // keyless, to verify: who must have vouched for the identity
	Insecure bool   // the registry is asked without TLS
}

// timeout limits one run of cosign.
const timeout = 5 * time.Minute

// withoutLog are the flags that sign without asking any service.
var withoutLog = []string{"--use-signing-config=false", "--tlog-upload=false"}

// KeyHint returns the hint at the key in the bundles that it signs, or "" without a key.
func (c Cosign) KeyHint(ctx context.Context) (string, error) {
	if c.Key == "" {
		return "", nil
	}
	out, err := c.run(ctx, "public-key", "--key", c.Key)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(out)
	if block == nil {
		return "", fmt.Errorf("%s public-key printed no key for %s", c.Program, c.Key)
	}
	sum := sha256.Sum256(block.Bytes)
	return base64.StdEncoding.EncodeToString(sum[:]), nil
}

// SignStatement signs a statement, and writes the bundle to a file.
func (c Cosign) SignStatement(ctx context.Context, statement []byte, bundle string) error {
	dir, err := os.MkdirTemp(filepath.Dir(bundle), ".statement-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "statement.json")
	if err := os.WriteFile(file, statement, 0o644); err != nil {
		return err
	}
	return c.sign(ctx, bundle, dir, "attest-blob", "--statement", file)
}

// SignFile signs a file, and writes the bundle to another.
func (c Cosign) SignFile(ctx context.Context, file, bundle string) error {
	dir, err := os.MkdirTemp(filepath.Dir(bundle), ".signature-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return c.sign(ctx, bundle, dir, "sign-blob", file)
}

// sign runs a command of cosign that writes a bundle. The bundle is moved into place at the end, so
// that it is whole or absent.
func (c Cosign) sign(ctx context.Context, bundle, dir string, command ...string) error {
	unfinished := filepath.Join(dir, "bundle.json")
	args := append(command, "--yes", "--bundle", unfinished)
	if c.Key != "" {
		args = append(append(args, "--key", c.Key), withoutLog...)
	}
	if _, err := c.run(ctx, args...); err != nil {
		return err
	}
	if err := os.Chmod(unfinished, 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, bundle)
}

// VerifyStatements returns the statements of a type that are signed about a digest in a registry
// ("host/path/name@sha256:…"), by the key or the identity.
func (c Cosign) VerifyStatements(ctx context.Context, reference, predicateType string) ([]Statement, error) {
	if err := c.checkKey(); err != nil {
		return nil, err
	}
	args := append([]string{"verify-attestation", "--type", predicateType}, c.verifier()...)
	if c.Insecure {
		args = append(args, "--allow-http-registry")
	}
	out, err := c.run(ctx, append(args, reference)...)
	if err != nil {
		return nil, err
	}
	var statements []Statement
	lines := bufio.NewScanner(bytes.NewReader(out))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var e envelope
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("what cosign printed: %w", err)
		}
		data, err := e.statement()
		if err != nil {
			return nil, fmt.Errorf("what cosign printed: %w", err)
		}
		s, err := ReadStatement(data)
		if err != nil {
			return nil, err
		}
		if s.PredicateType == predicateType {
			statements = append(statements, s)
		}
	}
	return statements, lines.Err()
}

// VerifyFile verifies the bundle of a file's signature.
func (c Cosign) VerifyFile(ctx context.Context, file, bundle string) error {
	_, err := c.run(ctx, append(append([]string{"verify-blob"}, c.verifier()...), "--bundle", bundle, file)...)
	return err
}

// VerifyFileStatement verifies the bundle of a statement about a file and others.
func (c Cosign) VerifyFileStatement(ctx context.Context, file, bundle, predicateType string) error {
	_, err := c.run(ctx, append(append([]string{"verify-blob-attestation", "--type", predicateType}, c.verifier()...), "--bundle", bundle, file)...)
	return err
}

// checkKey returns an error if the key is a file that cannot be read. cosign's own error looks like
// one about a signature.
func (c Cosign) checkKey() error {
	if c.Key == "" || strings.Contains(c.Key, "://") {
		return nil
	}
	f, err := os.Open(c.Key)
	if err != nil {
		return fmt.Errorf("the key: %w; name the file of a key with --key", err)
	}
	return f.Close()
}

// verifier returns the flags that say whose signatures count.
func (c Cosign) verifier() []string {
	if c.Key != "" {
		return []string{"--key", c.Key, "--insecure-ignore-tlog"}
	}
	return []string{"--certificate-identity", c.Identity, "--certificate-oidc-issuer", c.Issuer}
}

// run runs cosign and returns its output. Its error has the last line that cosign printed.
func (c Cosign) run(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Program, args...)
	var out, messages bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &messages
	err := cmd.Run()
	switch {
	case err == nil:
		return out.Bytes(), nil
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w; build it with make bin/tools/cosign, or name yours with --cosign", err)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cosign %s: %w", args[0], context.Cause(ctx))
	}
	return nil, &CosignError{Command: args[0], Message: message(messages.String()), Err: err}
}

// CosignError is an error that cosign reports.
type CosignError struct {
	Command, Message string
	Err              error
}

func (e *CosignError) Unwrap() error { return e.Err }

func (e *CosignError) Error() string { return "cosign " + e.Command + ": " + e.Message }

// message returns what cosign printed about an error, in one line.
func message(printed string) string {
	const limit = 500
	if strings.Contains(printed, "Enter password") {
		return "the private key has a password; set COSIGN_PASSWORD, empty if there is none"
	}
	var found string
	for line := range strings.Lines(printed) {
		line = strings.TrimSpace(line)
		if text, is := strings.CutPrefix(line, "Error: "); is {
			found = text
		} else if found == "" && line != "" && !strings.HasPrefix(line, "WARNING: ") {
			found = line
		}
	}
	if len(found) > limit {
		found = found[:limit] + "…"
	}
	return found
}
