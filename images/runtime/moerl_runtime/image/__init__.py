"""Static checks at the end of an image build: what the image claims to be, held against what is in it.

    capabilities   the document that the build wrote: pins and abilities of the stack
    observed       runs programs and reads files of the image; judges nothing
    sources        reads Python sources without importing them
    contracts      what this package calls in Miles, slime and SGLang
    checks         the verdicts; looks at nothing

A build has no GPU and no driver. What needs them is left to preflight.
"""
