// Package browsertest tests the status page in a real browser: headless Chromium, driven by
// chromedp. It is a module of its own, so that nothing else has to download chromedp.
package browsertest
