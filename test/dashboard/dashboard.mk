# A picture of the Grafana dashboard with data of a cluster with simulated GPUs.
#
#	make dashboard-picture              record, draw, and take docs/dashboard*.png
#	make dashboard-draw                 draw the last recording again
#
# It needs npm, for uPlot, which draws the charts. Prometheus and Chromium are Debian's.
DASHBOARD := $(BIN)/dashboard
UPLOT     := $(DASHBOARD)/node_modules/uplot/dist/uPlot.iife.min.js

.PHONY: dashboard-picture dashboard-draw
dashboard-picture: e2e-images $(UPLOT) ## record a cluster for seven minutes and take the pictures of the dashboard, docs/dashboard*.png
	GPUREADY_E2E='$(CURDIR)/$(BIN)' GPUREADY_DASHBOARD='$(abspath $(DASHBOARD))' $(GO) test -count=1 -v -timeout 40m -run '^TestDashboard$$' ./test/dashboard
	@$(MAKE) --no-print-directory dashboard-draw

dashboard-draw: $(UPLOT)
	@$(GO) run ./test/dashboard --dir '$(DASHBOARD)'
	@set -e; for part in dashboard:0-4 dashboard-pods:4-7 dashboard-operator:7-13; do \
		$(GO) run ./test/notebook picture --width 1500 --height 100 --out "docs/$${part%%:*}.png" "file://$(abspath $(DASHBOARD))/dashboard.html#$${part##*:}"; \
	done

$(UPLOT):
	@npm install --silent --no-audit --no-fund --prefix '$(DASHBOARD)' uplot@1.6.32
