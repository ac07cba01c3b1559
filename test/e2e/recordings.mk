# Pictures of terminals for the documentation.
#
#	make recordings           run the walkthroughs on clusters and record them: docs/recordings/*.svg
#	make recordings-draw      draw the last recordings again
#	make explain-picture      docs/explain.png, of the golden file of gpu-validator explain
#
# test/terminal draws them, with the fonts of whoever looks at them. Chromium is Debian's.
RECORDINGS := $(BIN)/recordings
EXPLAINED  := validator/report/testdata/explain/refused-color.txt

.PHONY: recordings recordings-draw explain-picture
recordings: e2e-images ## run the walkthroughs of the documentation and record the terminal, docs/recordings/
	@rm -f '$(RECORDINGS)'/*.cast
	GPUREADY_RECORD='$(abspath $(RECORDINGS))' $(E2E_RUN) -timeout 40m -run '^TestWalkthroughs$$'
	GPUREADY_RECORD='$(abspath $(RECORDINGS))' GPUREADY_E2E='$(CURDIR)/$(BIN)' $(GO) test -count=1 -v -timeout 40m -run '^TestUpgrade$$/^(Install|Walkthrough)$$' ./test/operator
	@$(MAKE) --no-print-directory recordings-draw

recordings-draw:
	@mkdir -p docs/recordings
	@set -e; for cast in '$(RECORDINGS)'/*.cast; do \
		$(GO) run ./test/terminal --out docs/recordings/"$$(basename "$$cast" .cast)".svg "$$cast"; \
	done
	@ls -s docs/recordings/*.svg

explain-picture:
	@mkdir -p '$(RECORDINGS)'
	@{ echo '{"version":2,"width":82,"height":40,"title":"gpu-validator explain"}'; \
		jq -Rsc '[0.1, "o", "\u001b[1;32m$$\u001b[0m gpu-validator explain\r\n" + gsub("\n"; "\r\n")]' $(EXPLAINED); \
	} >'$(RECORDINGS)/explain.txt'
	@$(GO) run ./test/terminal --still --scale 2 --out '$(RECORDINGS)/explain.svg' '$(RECORDINGS)/explain.txt'
	@$(GO) run ./test/notebook picture --width 100 --height 100 --out docs/explain.png '$(RECORDINGS)/explain.svg'
