// MercuryVan, for ps-lite: control by libzmq, as its own van; tensors over Mercury, in pieces, the
// most urgent message's next piece first. docs/pslite.md says how a tree of ps-lite gets to know
// it.
#pragma once

namespace ps {

class Van;

// Owned by the caller.
Van* NewMercuryVan();

}  // namespace ps
