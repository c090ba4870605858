// Package crashtest kills stores while clients use them, and compares what the clients see
// afterwards with what the stores acknowledged.
//
//	func TestMain(m *testing.M) {
//		crashtest.Main(serve) // the same program is the child that is killed
//		os.Exit(m.Run())
//	}
//
//	func TestCrashes(t *testing.T) {
//		report, err := crashtest.Run(t.Context(), store, crashtest.Options{Cycles: 500}) // store is a Store
//		if err := errors.Join(err, report.Err()); err != nil {
//			t.Error(err)
//		}
//	}
//
// The clients do everything at random that the protocol has on a few registers, contend for leases,
// and deliver requests again.
//
// A [History] is what clients saw of one key; its Check says whether the operations are
// linearizable, by github.com/anishathalye/porcupine and the rules of a durable store: values,
// versions, fences, conditions, lifetimes, crashes, and requests that were never answered.
//
// Between a crash and the restart the clock of the store's machine may be set, back or forward.
//
// What it does not test: a disk that fails, and what a loss of power can leave. The tests of
// server/journal do. A network that fails: package simulation.
package crashtest
