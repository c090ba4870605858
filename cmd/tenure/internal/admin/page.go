package admin

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"net/http"
	"strings"
)

//go:embed page.html
var page string

// pagePolicy allows the page its own style and script, and requests to this server. Nothing else
// runs, even if a name on the page were taken for HTML.
var pagePolicy = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"connect-src 'self'; img-src data:; require-trusted-types-for 'script'; " +
	"style-src " + hashOf("style") + "; script-src " + hashOf("script")

// hashOf returns the source expression for the content of the only element of this name.
func hashOf(element string) string {
	_, content, _ := strings.Cut(page, "<"+element+">")
	content, _, _ = strings.Cut(content, "</"+element+">")
	sum := sha256.Sum256([]byte(content))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func servePage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write([]byte(page))
}
