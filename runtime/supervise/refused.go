package supervise

import (
	"errors"
	"fmt"
	"time"

	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// refusedRecord is the data of a record about a container that was not created.
type refusedRecord struct {
	audit.Container
	Argv     []string `json:"argv"`
	EnvNames []string `json:"envNames"`
	Cwd      string   `json:"cwd"`
	UID      uint32   `json:"uid"`
	GID      uint32   `json:"gid"`
	Runtime  string   `json:"runtime"`
	// What was asked for, the rule that refuses it, and what would allow it.
	What  string `json:"what"`
	Rule  string `json:"rule"`
	Allow string `json:"allow"`
	// Caller is the program that asked the runtime, "" if it is not known.
	Caller string `json:"caller,omitempty"`
}

// RecordRefusal returns the function for container.CreateOptions.Refused: it leaves a log of its own for a creation that
// the profile refuses, complete and signed like others.
func RecordRefusal(o Options) func(r *wire.Refused) error {
	return func(r *wire.Refused) error {
		created := time.Now().UTC()
		dir, keyDir := o.dirs()
		log, err := audit.Open(LogDir(dir, r.ID, created), audit.Options{})
		if err != nil {
			return fmt.Errorf("evidence of container %q: %w", r.ID, err)
		}
		d := describe(r.ID, created, r.Bundle, r.Annotations, r.Profile)
		err = log.Append(audit.TypeRefused, &refusedRecord{
			Container: d, Argv: audit.Redact(r.Args), EnvNames: r.EnvNames, Cwd: r.Cwd, UID: r.UID, GID: r.GID,
			Runtime: o.Version, What: r.What, Rule: r.Rule, Allow: r.Allow, Caller: r.Caller,
		})
		p := audit.Predicate{
			Container: d, Runtime: o.Version, Result: audit.Result{ExitStatus: Unknown, Reason: audit.ReasonRefused, Finished: created},
		}
		return errors.Join(err, finishLog(log, &p, keyDir), log.Close())
	}
}

// finishLog writes the last record, and the statement if there is a key. What can't be signed is said in the log.
func finishLog(log *audit.Writer, p *audit.Predicate, keyDir string) error {
	signer, unsigned := audit.LoadSigner(keyDir)
	data := map[string]string{}
	if unsigned != nil {
		data["unsigned"] = unsigned.Error()
		unsigned = fmt.Errorf("the statement is not signed: %w", unsigned)
	}
	err := log.Append(audit.TypeClose, data)
	if signer == nil {
		return errors.Join(err, unsigned)
	}
	envelope, serr := audit.Sign(audit.NewStatement(log, p), signer)
	if serr == nil {
		serr = audit.WriteEnvelope(log, envelope)
	}
	return errors.Join(err, serr)
}

// dirs are where logs go and the key lies.
func (o *Options) dirs() (evidence, keys string) {
	evidence, keys = o.EvidenceDir, o.KeyDir
	if evidence == "" {
		evidence = EvidenceDir
	}
	if keys == "" {
		keys = audit.KeyDir
	}
	return evidence, keys
}
