package crashtest_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"math/rand/v2"

	"github.com/tenurelock/tenure/server/crashtest"
)

func TestARunInWhichLittleHappenedFails(t *testing.T) {
	if err := (&crashtest.Report{Cycles: 10}).Err(); !errors.Is(err, crashtest.ErrThin) {
		t.Errorf("the error is %v", err)
	}
}

func TestAViolationFailsARun(t *testing.T) {
	report := &crashtest.Report{Violations: []crashtest.Violation{{Property: crashtest.WritesSurvive, Text: "it does not"}}}
	if err := report.Err(); err == nil || errors.Is(err, crashtest.ErrThin) {
		t.Errorf("the error is %v", err)
	}
}

// A check of a history that does not end in time proves nothing, so the run fails.
func TestAHistoryWithoutAVerdictFailsARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &virtualStore{random: rand.New(rand.NewPCG(*seed, 2))}
		report, err := crashtest.Run(t.Context(), v, crashtest.Options{Cycles: 5, Seed: *seed, Patience: time.Nanosecond})
		v.store.Close()
		if err != nil {
			t.Error(err)
		}
		undecided := func(v crashtest.Violation) bool { return v.Property == crashtest.HistoriesAreLinearizable }
		if !slices.ContainsFunc(report.Violations, undecided) {
			t.Errorf("the violations are %v", report.Violations)
		}
	})
}
