// Package workflows has no code. Its tests check the workflows and the other files in .github:
// GitHub's syntax, by actionlint, and the rules that keep a stranger's pull request away from tokens.
package workflows
