# Pictures of terminals for the documentation.
#
#	make recordings           run the walkthroughs on clusters and record them: docs/recordings/*.svg
#	make recordings-draw      draw the last recordings again
#	make explain-picture      docs/explain.png, of the golden file of gpu-validator explain
#
# They need npm, for svg-term, which draws a terminal. Chromium is Debian's.
RECORDINGS := $(BIN)/recordings
SVG_TERM   := $(RECORDINGS)/node_modules/.bin/svg-term

.PHONY: recordings recordings-draw explain-picture
recordings: e2e-images $(SVG_TERM) ## run the walkthroughs of the documentation and record the terminal, docs/recordings/
	@rm -f '$(RECORDINGS)'/*.cast
	GPUREADY_RECORD='$(abspath $(RECORDINGS))' $(E2E_RUN) -timeout 40m -run '^TestWalkthroughs$$'
	GPUREADY_RECORD='$(abspath $(RECORDINGS))' GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test $(TAGS) -count=1 -v -timeout 40m -run '^TestUpgrade$$/^(Install|Walkthrough)$$' ./test/operator
	@$(MAKE) --no-print-directory recordings-draw

recordings-draw: $(SVG_TERM)
	@mkdir -p docs/recordings
	@for cast in '$(RECORDINGS)'/*.cast; do $(SVG_TERM) --window --no-cursor --in "$$cast" --out docs/recordings/"$$(basename "$$cast" .cast)".svg || exit 1; done
	@ls -s docs/recordings/*.svg

explain-picture: $(SVG_TERM)
	@{ echo '{"version":2,"width":84,"height":27}'; jq -Rsc '[0.1, "o", ("$$ gpu-validator explain\r\n" + gsub("\n"; "\r\n"))]' validator/explain/testdata/refused-color.txt; } >'$(RECORDINGS)/explain.txt'
	@$(SVG_TERM) --at 100 --no-cursor --padding 10 --in '$(RECORDINGS)/explain.txt' --out '$(RECORDINGS)/explain.svg'
	@$(GO) run $(TAGS) ./test/notebook picture --width 860 --height 606 --out docs/explain.png '$(RECORDINGS)/explain.svg'

$(SVG_TERM): | packages-cluster
	@npm install --silent --no-audit --no-fund --prefix '$(RECORDINGS)' svg-term-cli@2.1.1
